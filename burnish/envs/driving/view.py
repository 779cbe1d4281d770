"""A bird's-eye picture of one world."""

import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.geometry import box_corners, to_local
from burnish.envs.driving.reference import boxes
from burnish.envs.driving.simulator import Simulator

PIXELS, SPAN = 384, 96.0
"""Side of the picture in pixels and in metres."""
_GROUND, _ROAD, _EDGE, _ROUTE = (222, 226, 214), (128, 130, 134), (60, 60, 60), (236, 196, 84)
_EGO, _DRIVEN, _OTHER, _HIT = (46, 110, 220), (40, 150, 110), (235, 235, 235), (214, 60, 50)


def bird_eye(simulator: Simulator, world: int) -> Array:
    """Return (384, 384, 3) uint8: the ego drives upwards from below the middle; red where it hit or left the road."""
    from PIL import Image, ImageDraw

    state = simulator.state
    scene = simulator.bank.scenes[int(state.scene[world])]
    ego = state.motion[world, 0, :3]
    image = Image.new("RGB", (PIXELS, PIXELS), _GROUND)
    draw = ImageDraw.Draw(image)

    def place(points: Array) -> list[tuple[float, float]]:
        local = to_local(points, ego) * (PIXELS / SPAN)
        return [(float(PIXELS / 2 - y), float(0.7 * PIXELS - x)) for x, y in local]

    for index in range(len(scene.polygon_offsets) - 1):
        draw.polygon(place(scene.polygon(index)), fill=_ROAD)
    for edge in scene.edges():
        draw.line(place(edge), fill=_EDGE, width=2)
    draw.line(place(scene.route), fill=_ROUTE, width=3)
    corners = box_corners(boxes(state)[world])
    for slot in np.flatnonzero(state.present[world])[::-1].tolist():
        colour = (_EGO, _DRIVEN)[min(slot, 1)] if slot == 0 or state.mode[world, slot] == 2 else _OTHER
        draw.polygon(place(corners[slot]), fill=_HIT if state.events[world, slot] else colour, outline=_EDGE)
    return np.asarray(image, np.uint8).copy()
