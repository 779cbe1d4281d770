"""Episodes to a LeRobotDataset v3, written by LeRobot's own class, so that stock LeRobot tools read it."""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import DatasetError, require
from burnish.core.spec import PRIVILEGED_PREFIX, ArraySpec, EnvSpec, to_json
from burnish.core.step import Start
from burnish.data.durable import durable_folder
from burnish.data.episodes import Episode

SIDE_CAR = "meta/burnish.json"
"""What LeRobot has no field for: the env spec, the exact control step, and where each episode began."""
FPS_TOLERANCE = 0.02
"""How far fps may be from 1 / control_dt, as a share: LeRobot needs whole frames per second."""
IMAGE_THREADS = 2
VIDEO_MIN_SIDE = 64
"""SVT-AV1 stops the process on smaller pictures."""


def fps_of(env_spec: EnvSpec) -> int:
    """Return the whole number of frames per second nearest to 1 / control_dt."""
    return max(1, round(1.0 / env_spec.control_dt))


def check_fps(env_spec: EnvSpec, fps: int) -> None:
    """Refuse a frame rate that is not that of the environment.

    Raises:
        DatasetError: Says what fits.
    """
    if fps < 1 or abs(fps * env_spec.control_dt - 1) > FPS_TOLERANCE:
        raise DatasetError(
            f"fps is {fps}, but '{env_spec.id}' acts every {env_spec.control_dt} s, which is "
            f"{1 / env_spec.control_dt:.4g} Hz. Use fps={fps_of(env_spec)}, or change control_dt to 1 / a whole number."
        )


def write_lerobot(
    directory: Path,
    episodes: Iterable[Episode],
    env_spec: EnvSpec,
    *,
    fps: int,
    privileged: bool = False,
    outcome: bool = True,
    videos: bool = False,
) -> int:
    """Write episodes as a new LeRobotDataset v3.

    The folder appears when all is written, or not at all. One that exists is replaced.

    Args:
        directory: Where the dataset shall be.
        episodes: Recorded with ``replan_steps=1`` and ``keep_observation=True``: one observation per action.
        env_spec: Describes their entries.
        fps: Frames per second; within 2 % of 1 / control_dt.
        privileged: Whether to write ``privileged.*`` entries, which no deployed policy has.
        outcome: Whether to write ``next.reward``, ``next.success`` and ``next.done``.
        videos: Whether to store images as compressed video (lossy) instead of PNG.

    Returns:
        Number of episodes.

    Raises:
        DatasetError: If an episode does not fit, fps is wrong, or there is no episode.
        MissingExtraError: If lerobot is not installed.
    """
    require("lerobot", "lerobot", "writing a LeRobotDataset")
    check_fps(env_spec, fps)
    if videos:
        _check_video_size(env_spec)
    keys = dict(env_spec.observation if privileged else env_spec.public_observation)
    with durable_folder(directory, create=False) as temporary, _quiet():
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        dataset = LeRobotDataset.create(
            repo_id=f"burnish/{directory.name}",
            fps=fps,
            features=_features(keys, env_spec.action, outcome=outcome, videos=videos),
            root=temporary,
            robot_type=env_spec.id,
            use_videos=videos,
            video_backend="pyav",
            image_writer_threads=IMAGE_THREADS if env_spec.image_keys else 0,
        )
        written = _fill(dataset, episodes, keys, env_spec, outcome=outcome)
        if not written:
            raise DatasetError("There is no episode to write; LeRobot cannot hold an empty dataset.")
        _write_side_car(temporary / SIDE_CAR, env_spec, privileged=privileged, episodes=written)
    return len(written)


def _fill(
    dataset: Any, episodes: Iterable[Episode], keys: dict[str, ArraySpec], env_spec: EnvSpec, *, outcome: bool
) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    try:
        for episode in episodes:
            check_episode(episode, keys, env_spec)
            for frame in _frames(episode, keys, outcome=outcome):
                dataset.add_frame(frame)
            dataset.save_episode()
            written.append(asdict(episode.start))
    finally:
        dataset.finalize()
    return written


def check_episode(episode: Episode, keys: dict[str, ArraySpec], env_spec: EnvSpec) -> None:
    """Refuse an episode that cannot be written.

    Raises:
        DatasetError: Says why.
    """
    where = f"Episode of {episode.start}"
    if len(episode.decision) != episode.length:
        raise DatasetError(
            f"{where}: has {len(episode.decision)} observations for {episode.length} actions. LeRobot needs one each: "
            "record with replan_steps=1."
        )
    if episode.action.shape[1:] != env_spec.action.shape:
        raise DatasetError(f"{where}: actions are {episode.action.shape[1:]}, the spec says {env_spec.action.shape}.")
    for key, spec in keys.items():
        if key not in episode.observation:
            found = ", ".join(episode.observation) or "(none; record with keep_observation=True)"
            raise DatasetError(f"{where}: has no '{key}', which '{env_spec.id}' declares. It has: {found}.")
        array = episode.observation[key]
        if array.shape[1:] != spec.shape or array.dtype != spec.dtype:
            raise DatasetError(
                f"{where}: '{key}' is {array.dtype} {array.shape[1:]}, the spec says {spec.dtype} {spec.shape}."
            )


def _write_side_car(path: Path, env_spec: EnvSpec, *, privileged: bool, episodes: list[dict[str, Any]]) -> None:
    side_car = {"format_version": 1, "env_spec": to_json(env_spec), "privileged": privileged, "episodes": episodes}
    path.write_text(json.dumps(side_car, indent=1), encoding="utf-8")


def exported_starts(directory: Path, env_spec: EnvSpec, *, privileged: bool) -> list[Start] | None:
    """Return the Starts of the episodes in a dataset that :func:`write_lerobot` wrote, None if it is not there.

    Args:
        directory: The dataset.
        env_spec: A dataset of another environment counts as not there.
        privileged: A dataset with other entries, too.
    """
    try:
        plain = json.loads((directory / SIDE_CAR).read_text(encoding="utf-8"))
        same = plain["env_spec"] == to_json(env_spec) and plain["privileged"] == privileged
        return [Start(**start) for start in plain["episodes"]] if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_video_size(env_spec: EnvSpec) -> None:
    for key in env_spec.image_keys:
        if min(env_spec.observation[key].shape[:2]) < VIDEO_MIN_SIDE:
            raise DatasetError(
                f"'{key}' of '{env_spec.id}' is {env_spec.observation[key].shape}; LeRobot's AV1 encoder needs at "
                f"least {VIDEO_MIN_SIDE} pixels a side. Write images instead (videos=False)."
            )


def _features(
    keys: dict[str, ArraySpec], action: ArraySpec, *, outcome: bool, videos: bool
) -> dict[str, dict[str, Any]]:
    features: dict[str, dict[str, Any]] = {}
    for key, spec in {**keys, "action": action}.items():
        if spec.is_image and not key.startswith(PRIVILEGED_PREFIX):
            features[key] = {
                "dtype": "video" if videos else "image",
                "shape": spec.shape,
                "names": ["height", "width", "channels"],
            }
        else:
            features[key] = {"dtype": spec.dtype, "shape": spec.shape or (1,), "names": list(spec.names) or None}
    if outcome:
        for name, dtype in (("next.reward", "float32"), ("next.success", "bool"), ("next.done", "bool")):
            features[name] = {"dtype": dtype, "shape": (1,), "names": None}
    return features


def _frames(episode: Episode, keys: dict[str, ArraySpec], *, outcome: bool) -> Iterator[dict[str, Any]]:
    last = episode.length - 1
    for t in range(episode.length):
        frame: dict[str, Any] = {
            key: np.array(episode.observation[key][t]).reshape(spec.shape or (1,)) for key, spec in keys.items()
        }
        frame["action"] = episode.action[t]
        if outcome:
            frame["next.reward"] = episode.reward[t : t + 1]
            frame["next.success"] = np.array([t == last and episode.success])
            frame["next.done"] = np.array([t == last])
        yield {**frame, "task": episode.task}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars and notes of ``datasets`` off the terminal."""
    import datasets

    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
