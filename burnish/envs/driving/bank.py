"""Scenes packed into flat tables, shared by all worlds that run them; what kernels read and nobody writes.

Around each cell of a 10 m grid is noted in advance what a car in it can see and touch: the road segments nearest to the
cell's middle, the edge pieces and the lane polygons within reach. A step then looks at a short list instead of a map.
"""

from typing import Any, NamedTuple

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array
from burnish.envs.driving.geometry import along_path, path_lengths, simplified, subdivided
from burnish.envs.driving.scene import Scene, log_path
from burnish.envs.driving.vehicle import rig_to_center

CELL = 10.0
"""Side of a grid cell [m]."""
ROAD_TOKENS = 232
"""Road segments in an observation, as in PufferDrive."""
SEGMENT = 5.0
"""Longest road segment of an observation [m]."""
EDGE_PIECE = 5.0
"""Longest piece of a road edge in the tables [m]."""
REACH = 12.0
"""Edges and lanes up to so far from a cell are in its lists [m]; more than half the diagonal of any vehicle."""
MARGIN = 120.0
"""So far around the ego's route the map is kept [m]."""
PARKED = 1.0
"""Who does not get further than this in a log stands there [m]."""
PATH_STEP = 1.0
"""Spacing of the points of paths [m]."""


class Tables(NamedTuple):
    """Everything that kernels read about scenes. Rows of a scene follow each other; counts and starts find them."""

    grid: Array
    """(S, 4) lowest x and y of the grid [m], cells in x and y."""
    grid_start: Array
    """(S,) row of the scene's first cell."""
    cell_segments: Array
    """(C, 232) rows of ``segments``, -1 for none."""
    segments: Array
    """(M, 7) middle x, y, half length [m], cos and sin of the direction, is edge, is lane."""
    cell_edges: Array
    """(C, 2) start and count in ``edges``."""
    edges: Array
    """(K, 4) both ends of an edge piece [m]; a piece is listed again for each cell that reaches it."""
    cell_polygons: Array
    """(C, 2) start and count in ``polygon_list``."""
    polygon_list: Array
    """(K,) rows of ``polygons``."""
    polygons: Array
    """(P, 2) start and count in ``polygon_points``."""
    polygon_points: Array
    """(V, 2) [m]."""
    tracks: Array
    """(S, 4) row of ``track_states`` of track 0, tracks A, steps T, row of ``agents`` of track 0."""
    track_states: Array
    """(sum A T, 5) x, y, yaw, speed of the box centre, valid; track by track. The ego is track 0."""
    agents: Array
    """(sum A, 6) length, width, rear axle to centre [m], speed asked for [m/s], goal x and y (end of the log)."""
    paths: Array
    """(sum A, 2) start and count in ``path_points``."""
    path_points: Array
    """(., 3) x, y, unwrapped heading, 1 m apart: where a track drove, and on along the lanes."""
    logs: Array
    """(S, 2) start and count in ``log_points``."""
    log_points: Array
    """(., 3) x, y, arc length of the ego's logged path, that progress is measured on."""
    routes: Array
    """(S, 2) start and count in ``route_points``."""
    route_points: Array
    """(., 3) x, y, arc length."""


class _Column:
    """An array that grows at its end."""

    def __init__(self, width: int, dtype: str) -> None:
        self._rows = np.zeros((16, width) if width else (16,), dtype)
        self.size = 0

    def extend(self, rows: Any) -> int:
        """Append rows and return where they begin."""
        rows = np.asarray(rows, self._rows.dtype).reshape(-1, *self._rows.shape[1:])
        begin, self.size = self.size, self.size + len(rows)
        if self.size > len(self._rows):
            grown = np.zeros((max(2 * len(self._rows), self.size), *self._rows.shape[1:]), self._rows.dtype)
            grown[:begin] = self._rows[:begin]
            self._rows = grown
        self._rows[begin : self.size] = rows
        return begin

    def view(self) -> Array:
        """Return the filled rows."""
        return self._rows[: self.size]


_WIDTHS = {
    "grid": (4, "f8"),
    "grid_start": (0, "i8"),
    "cell_segments": (ROAD_TOKENS, "i4"),
    "segments": (7, "f8"),
    "cell_edges": (2, "i8"),
    "edges": (4, "f8"),
    "cell_polygons": (2, "i8"),
    "polygon_list": (0, "i8"),
    "polygons": (2, "i8"),
    "polygon_points": (2, "f8"),
    "tracks": (4, "i8"),
    "track_states": (5, "f8"),
    "agents": (6, "f8"),
    "paths": (2, "i8"),
    "path_points": (3, "f8"),
    "logs": (2, "i8"),
    "log_points": (3, "f8"),
    "routes": (2, "i8"),
    "route_points": (3, "f8"),
}


class Bank:
    """Packs scenes one after the other; a scene's number never changes."""

    def __init__(self, slots: int = 32) -> None:
        """Begin without scenes.

        Args:
            slots: Most tracks that a scene may have.
        """
        self.slots = slots
        self.scenes: list[Scene] = []
        self._numbers: dict[str, int] = {}
        self._columns = {name: _Column(*_WIDTHS[name]) for name in Tables._fields}
        self._tables: Tables | None = None

    def number(self, name: str) -> int:
        """Return the number of a scene by the name it was added with, -1 if it was not."""
        return self._numbers.get(name, -1)

    def tables(self) -> Tables:
        """Return the tables of all scenes so far; they are views that hold until the next :meth:`add`."""
        if self._tables is None:
            self._tables = Tables(**{name: column.view() for name, column in self._columns.items()})
        return self._tables

    def add(self, scene: Scene, name: str = "") -> int:
        """Pack a scene and return its number; one with the same name is packed once.

        Args:
            scene: What to pack.
            name: What it is known by; "" for its id.

        Raises:
            ConfigError: If it has more tracks than slots.
        """
        name = name or scene.id
        if name in self._numbers:
            return self._numbers[name]
        if scene.num_tracks > self.slots:
            raise ConfigError(
                f"Scene '{scene.id}' has {scene.num_tracks} tracks, but a world has {self.slots} slots, and none is "
                "left out silently. Raise agent_slots, or reduce the scene with "
                "burnish.envs.driving.scene.nearest_tracks."
            )
        self._tables = None
        number = len(self.scenes)
        order = [scene.ego, *(index for index in range(scene.num_tracks) if index != scene.ego)]
        self._add_tracks(scene, order)
        self._add_map(scene)
        for kind, path in (("log", _driven(scene)), ("route", scene.route)):
            start = self._columns[f"{kind}_points"].extend(np.column_stack((path, path_lengths(path))))
            self._columns[f"{kind}s"].extend([[start, len(path)]])
        self.scenes.append(scene)
        self._numbers[name] = number
        return number

    def _add_tracks(self, scene: Scene, order: list[int]) -> None:
        column = self._columns
        states = np.concatenate((scene.track_states[order], scene.track_valid[order][..., None]), -1)
        begin = column["track_states"].extend(states.reshape(-1, 5))
        agents = []
        for index in order:
            driven = scene.track_states[index, scene.track_valid[index]]
            walks = scene.track_types[index] == _PEDESTRIAN
            path = _walked(driven) if walks or np.ptp(driven[:, :2], 0).max() < PARKED else log_path(scene, index)
            total = path_lengths(path)[-1]
            poses = along_path(path, np.arange(0.0, max(total, PATH_STEP) + 1e-9, PATH_STEP))
            poses[:, 2] = np.unwrap(poses[:, 2])
            start = column["path_points"].extend(poses)
            column["paths"].extend([[start, len(poses)]])
            length, width = scene.track_sizes[index]
            speed = float(driven[:, 3].max())
            agents.append((length, width, rig_to_center(length), speed, *driven[-1, :2]))
        first = column["agents"].extend(agents)
        column["tracks"].extend([[begin, len(order), scene.num_steps, first]])

    def _add_map(self, scene: Scene) -> None:
        column = self._columns
        low, high = scene.route.min(0) - MARGIN, scene.route.max(0) + MARGIN
        count = np.maximum(np.ceil((high - low) / CELL).astype(int), 1)
        cells = low + CELL * (np.stack(np.divmod(np.arange(count.prod()), count[1]), -1) + 0.5)
        column["grid"].extend([[*low, *count]])
        kept = [path for path in scene.edges() if _near(path, low, high)]
        lanes = [line for line in map(scene.lane, range(scene.num_lanes)) if _near(line, low, high)]
        segments = np.concatenate([_segments(path, edge) for edge, paths in ((1, kept), (0, lanes)) for path in paths])
        start = column["segments"].extend(segments)
        chosen = _nearest(cells, segments)
        column["grid_start"].extend([column["cell_segments"].extend(np.where(chosen >= 0, chosen + start, -1))])
        pieces = [np.concatenate((path[:-1], path[1:]), 1) for path in (subdivided(p, EDGE_PIECE) for p in kept)]
        self._add_lists("edges", cells, np.concatenate(pieces) if pieces else np.zeros((0, 4)))
        outlines = [scene.polygon(index) for index in range(len(scene.polygon_offsets) - 1)]
        outlines = [outline for outline in outlines if _near(outline, low, high)]
        rows = []
        for outline in outlines:
            begin = column["polygon_points"].extend(outline)
            rows.append((begin, len(outline)))
        first = column["polygons"].extend(rows)
        boxes = np.array([[*outline.min(0), *outline.max(0)] for outline in outlines])
        self._add_lists("polygon_list", cells, boxes, first)

    def _add_lists(self, name: str, cells: Array, spans: Array, first: int | None = None) -> None:
        """Note for each cell the spans (K, 4) of two corners that come within reach: their rows, or they themselves."""
        reach = 0.5 * CELL + REACH
        low = np.minimum(spans[:, :2], spans[:, 2:])
        high = np.maximum(spans[:, :2], spans[:, 2:])
        index = self._columns["cell_polygons" if first is not None else "cell_edges"]
        for cell in cells:
            hits = np.flatnonzero(((low <= cell + reach) & (high >= cell - reach)).all(1))
            begin = self._columns[name].extend(spans[hits] if first is None else hits + first)
            index.extend([[begin, len(hits)]])


_PEDESTRIAN = 5


def _driven(scene: Scene) -> Array:
    """Return the logged path of the ego (K, 2), as progress is measured on it."""
    return simplified(scene.ego_log[:, :2], 1e-3)


def _walked(driven: Array) -> Array:
    """Return the path (K, 2) of one who follows no lane: where it was, and no more; a place where it stood."""
    path = simplified(driven[:, :2], 0.5)
    if path_lengths(path)[-1] >= PARKED:
        return path
    yaw = driven[0, 2]
    place: Array = driven[:1, :2] + np.array([[0.0, 0.0], [0.1 * np.cos(yaw), 0.1 * np.sin(yaw)]])
    return place


def _near(points: Array, low: Array, high: Array) -> bool:
    return bool((points.max(0) >= low).all() and (points.min(0) <= high).all())


def _segments(path: Array, edge: int) -> Array:
    """Return (K, 7) road segments of an observation along a path."""
    total = path_lengths(path)[-1]
    ends = along_path(path, np.linspace(0.0, total, max(1, int(np.ceil(total / SEGMENT))) + 1))[:, :2]
    step = np.diff(ends, axis=0)
    size = np.maximum(np.hypot(*step.T), 1e-9)
    middle = 0.5 * (ends[:-1] + ends[1:])
    kind = np.broadcast_to((float(edge), 1.0 - edge), (len(step), 2))
    segments: Array = np.column_stack((middle, 0.5 * size, step / size[:, None], kind))
    return segments


def _nearest(cells: Array, segments: Array) -> Array:
    """Return (C, 232) rows of the segments nearest to each cell's middle, nearest first, -1 where there are fewer."""
    chosen = np.full((len(cells), ROAD_TOKENS), -1, np.int64)
    count = min(ROAD_TOKENS, len(segments))
    for begin in range(0, len(cells), 256):
        gap = segments[None, :, :2] - cells[begin : begin + 256, None]
        squares = (gap * gap).sum(-1)
        part = np.argpartition(squares, count - 1, axis=1)[:, :count] if count < len(segments) else None
        if part is None:
            part = np.broadcast_to(np.arange(count), (len(squares), count))
        rank = np.argsort(np.take_along_axis(squares, part, 1), axis=1, kind="stable")
        chosen[begin : begin + 256, :count] = np.take_along_axis(part, rank, 1)
    return chosen
