"""Film episodes: the first successes and the first failures of an evaluation, as files that a browser plays."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from burnish.core.contracts import Policy, Renderable, VecEnv
from burnish.core.errors import DatasetError, EnvError
from burnish.core.spec import Array
from burnish.core.step import Start
from burnish.data.durable import durable_text
from burnish.data.episodes import Episode, run_episodes
from burnish.evaluation.evaluate import TimedPolicy
from burnish.evaluation.result import EvaluationResult

INDEX = "videos.json"
"""File beside the videos that says what each one shows."""
MAX_FPS = 30.0
"""Frames per second above which frames are left out; a video always plays at the speed of the episode."""
CODECS = (("libx264", "mp4"), ("libvpx-vp9", "webm"))
"""Encoders that browsers understand, the preferred one first, and the container of each."""


@dataclass(frozen=True)
class Video:
    """One filmed episode."""

    file: Path
    """Where it is."""
    start: Start
    """Where the episode began."""
    success: bool
    """Whether it succeeded."""
    length: int
    """Executed actions."""
    return_: float
    """Undiscounted sum of rewards."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Final figures of the episode."""

    @property
    def media_type(self) -> str:
        """What a browser calls it."""
        return f"video/{self.file.suffix[1:]}"


def record_videos(
    policy: Policy,
    env: VecEnv,
    result: EvaluationResult,
    directory: Path,
    *,
    successes: int = 2,
    failures: int = 2,
) -> list[Video]:
    """Run the first successes and failures of an evaluation again, and film them.

    With deterministic decoding the same happens again; with sampled decoding another outcome is possible, and the
    video says what it shows.

    Args:
        policy: The one that was evaluated.
        env: The one it was evaluated in; it must be able to render.
        result: Says which episodes to film, and with what decoding and replan horizon.
        directory: Gets one file for each episode and ``videos.json``; videos of an earlier call are replaced.
        successes: How many successes at most.
        failures: How many failures at most.

    Raises:
        EnvError: If the environment cannot render.
    """
    if not isinstance(env, Renderable):
        raise EnvError(
            f"{env.spec.id}: videos need an environment with `render(index)`, and {type(env).__name__} has none. "
            "Evaluate without videos, or give the environment a render method."
        )
    wanted = choose(result, successes, failures)
    directory.mkdir(parents=True, exist_ok=True)
    clear(directory)
    protocol = result.protocol
    act = TimedPolicy(policy, deterministic=protocol["decoding"] == "deterministic", seed=result.seed)
    stride = max(1, round(1 / (env.spec.control_dt * MAX_FPS)))
    films = _Films(env, directory, stride, Fraction(1 / (env.spec.control_dt * stride)).limit_denominator(1000))
    try:
        found = [
            films.finish(episode)
            for episode in run_episodes(act, env, wanted, replan_steps=protocol["replan_steps"], on_frame=films.frame)
        ]
    finally:
        films.discard()
    videos = sorted(found, key=lambda video: wanted.index(video.start))
    _write_index(directory, videos)
    return videos


def choose(result: EvaluationResult, successes: int, failures: int) -> list[Start]:
    """Return the Starts of the first successes and of the first failures."""
    good = [row.start for row in result.episodes if row.success][:successes]
    bad = [row.start for row in result.episodes if not row.success][:failures]
    return list(dict.fromkeys([*good, *bad]))


def load_videos(directory: Path) -> list[Video]:
    """Return what :func:`record_videos` wrote into a folder; empty where there is none.

    Raises:
        DatasetError: If the index is damaged or a file is missing.
    """
    index = directory / INDEX
    if not index.is_file():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(index.read_text(encoding="utf-8"))
        videos = [Video(**{**row, "file": directory / row["file"], "start": Start(**row["start"])}) for row in rows]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DatasetError(f"'{index}' is damaged: {type(error).__name__}: {error}. Evaluate again.") from error
    missing = [video.file.name for video in videos if not video.file.is_file()]
    if missing:
        raise DatasetError(f"'{index}' names videos that are not there: {', '.join(missing)}. Evaluate again.")
    return videos


def clear(directory: Path) -> None:
    """Remove the videos that the index of a folder names, and the index."""
    for video in load_videos(directory) if (directory / INDEX).is_file() else []:
        video.file.unlink()
    (directory / INDEX).unlink(missing_ok=True)


def _write_index(directory: Path, videos: Sequence[Video]) -> None:
    rows = [{**asdict(video), "file": video.file.name} for video in videos]
    for row in rows:
        row["metrics"] = {name: float(figure) for name, figure in row["metrics"].items() if np.isfinite(figure)}
    durable_text(directory / INDEX, json.dumps(rows, indent=1))


def codec() -> tuple[str, str]:
    """Return the first encoder that this machine has and its container.

    Raises:
        EnvError: If there is none.
    """
    for name, container in CODECS:
        if name in av.codecs_available:
            return name, container
    raise EnvError(f"The installed PyAV has none of the encoders {', '.join(name for name, _ in CODECS)}.")


class VideoWriter:
    """A video file that grows by one frame at a time."""

    def __init__(self, file: Path, fps: Fraction) -> None:
        """Begin a file; its size is that of the first frame.

        Args:
            file: Where; the suffix is that of :func:`codec`.
            fps: Frames per second.
        """
        name, container = codec()
        self.file = file
        self.frames = 0
        opened: Any = av.open(str(file), "w", format=container, options={"movflags": "faststart"})
        self._container = opened
        self._stream: Any = self._container.add_stream(name, rate=fps)
        self._stream.pix_fmt = "yuv420p"
        self._stream.thread_count = 1
        self._stream.options = {"crf": "24", "preset": "fast"} if name == "libx264" else {"crf": "32", "b:v": "0"}

    def add(self, picture: Array) -> None:
        """Append a picture (H, W, 3) uint8; an odd height or width gets one more row or column."""
        picture = even(picture)
        if not self.frames:
            self._stream.height, self._stream.width = picture.shape[:2]
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        self.frames += 1

    def close(self) -> None:
        """Write what is still held back, and the file's index."""
        if self.frames:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def even(picture: Array) -> Array:
    """Return a picture with even height and width, as the encoders want; the last row or column is repeated."""
    height, width = picture.shape[:2]
    padded: Array = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(padded)


class _Films:
    """The films that are being shot, by Start."""

    def __init__(self, env: Renderable, directory: Path, stride: int, fps: Fraction) -> None:
        self._env, self._directory, self._stride, self._fps = env, directory, stride, fps
        self._running: dict[Start, tuple[VideoWriter, list[int]]] = {}
        self._done = {True: 0, False: 0}

    def frame(self, index: int, start: Start) -> None:
        if start not in self._running:
            draft = self._directory / f".film-{len(self._running)}-{sum(self._done.values())}.{codec()[1]}"
            self._running[start] = (VideoWriter(draft, self._fps), [0])
        writer, seen = self._running[start]
        if seen[0] % self._stride == 0:
            writer.add(self._env.render(index))
        seen[0] += 1

    def finish(self, episode: Episode) -> Video:
        writer, _ = self._running.pop(episode.start)
        writer.close()
        kind = "success" if episode.success else "failure"
        file = self._directory / f"{kind}_{self._done[episode.success]}{writer.file.suffix}"
        self._done[episode.success] += 1
        writer.file.replace(file)
        return Video(file, episode.start, episode.success, episode.length, episode.return_, dict(episode.metrics))

    def discard(self) -> None:
        for writer, _ in self._running.values():
            writer.close()
            writer.file.unlink(missing_ok=True)
        self._running.clear()
