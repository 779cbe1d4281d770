"""Record episodes of an expert or a policy: durable log first, LeRobotDataset at the end."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from burnish.core.contracts import VecEnv
from burnish.core.errors import ConfigError, DatasetError, require
from burnish.core.spec import EnvSpec, fingerprint, to_json
from burnish.core.step import Start
from burnish.data.durable import durable_file
from burnish.data.episodes import Act, run_episodes
from burnish.data.export import check_fps, exported_starts, fps_of, write_lerobot
from burnish.data.log import EpisodeLog

LOG = "episodes"
DATASET = "dataset"
RECORD = "record.json"


@dataclass(frozen=True)
class RecordResult:
    """What a recording holds."""

    episodes: int
    """Episodes of the wanted Starts in the log."""
    successes: int
    """How many of them succeeded."""
    resumed: int
    """How many of them an earlier, interrupted call had logged."""
    exported: int
    """Episodes in the LeRobotDataset, 0 without one."""
    log: Path
    """Folder of the durable log."""
    dataset: Path | None
    """Folder of the LeRobotDataset, None without one."""
    damaged: tuple[str, ...] = ()
    """Files of the log that cannot be read; their Starts were run again."""

    @property
    def text(self) -> str:
        """One sentence for the terminal."""
        parts = [f"{self.successes} of {self.episodes} succeeded"]
        if self.resumed:
            parts.append(f"{self.resumed} were there from before")
        if self.damaged:
            parts.append(f"{len(self.damaged)} damaged files were left out ({', '.join(self.damaged)})")
        if self.dataset is not None:
            parts.append(f"{self.exported} are in the LeRobotDataset {self.dataset}")
        return "; ".join(parts) + "."


def record(
    act: Act,
    env: VecEnv,
    starts: Sequence[Start],
    directory: Path,
    *,
    format: Literal["lerobot", "log"] = "lerobot",
    keep_only_success: bool = True,
    privileged: bool = False,
    replan_steps: int = 1,
    info: Mapping[str, Any] | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> RecordResult:
    """Run one episode from each Start and keep it.

    Every finished episode is on the disk before the next is finished. A recording that was interrupted, also by
    ``kill -9``, goes on when it is called again with the same folder: Starts in the log are not run again.

    Args:
        act: Observation of N environments to action chunks (N, K, A): a teacher's or a policy's.
        env: N environments.
        starts: What to run; no two are equal.
        directory: Gets ``episodes/``, the durable log, and ``dataset/``, the LeRobotDataset.
        format: "lerobot" exports at the end, "log" keeps the log only.
        keep_only_success: Whether failed episodes stay out of the LeRobotDataset; the log keeps them.
        privileged: Whether the LeRobotDataset gets ``privileged.*`` entries; the log has them in any case.
        replan_steps: Actions between two observations; a LeRobotDataset needs 1.
        info: JSON values kept with each episode, for example what acted.
        progress: Called as ``progress(episodes in the log, note)`` after each episode.

    Raises:
        ConfigError: If Starts repeat, or the format does not fit ``replan_steps``.
        DatasetError: If the folder holds another environment's recording, or no episode is left to export.
        MissingExtraError: If lerobot is needed and not installed.
    """
    _check_request(env.spec, starts, format, replan_steps)
    _claim(directory, env.spec, replan_steps, info or {})
    log = EpisodeLog(directory / LOG)
    damaged = tuple(log.damaged)
    wanted, there = set(starts), set(log.starts)
    resumed = len(wanted & there)
    done, good = resumed, sum(summary.success for summary in log.summaries() if summary.start in wanted)
    missing = [start for start in starts if start not in there]
    for episode in run_episodes(act, env, missing, replan_steps=replan_steps, keep_observation=True):
        log.write(replace(episode, info={**episode.info, **(info or {})}))
        done, good = done + 1, good + episode.success
        if progress is not None:
            progress(done, f"success {good}/{done}")
    exported = 0
    if format == "lerobot":
        exported = _export(log, starts, directory / DATASET, env.spec, only_success=keep_only_success, extra=privileged)
    return RecordResult(
        episodes=done,
        successes=good,
        resumed=resumed,
        exported=exported,
        log=log.directory,
        dataset=directory / DATASET if format == "lerobot" else None,
        damaged=damaged,
    )


def _check_request(spec: EnvSpec, starts: Sequence[Start], format: str, replan_steps: int) -> None:
    if not starts:
        raise ConfigError("Recording needs at least one Start, found none.")
    if len(set(starts)) != len(starts):
        twice = next(start for i, start in enumerate(starts) if start in starts[:i])
        raise ConfigError(f"Recording needs Starts that differ, but {twice} is there more than once.")
    if format not in ("lerobot", "log"):
        raise ConfigError(f"Unknown recording format '{format}'. Available: lerobot, log.")
    if format == "lerobot":
        if replan_steps != 1:
            raise ConfigError(
                f"A LeRobotDataset needs one observation for every action, but replan_steps is {replan_steps}. "
                'Record with replan_steps=1, or keep the log only (format="log").'
            )
        require("lerobot", "lerobot", "recording a LeRobotDataset")
        check_fps(spec, fps_of(spec))


def _claim(directory: Path, spec: EnvSpec, replan_steps: int, info: Mapping[str, Any]) -> None:
    """Write down what this folder holds and who acted, or refuse one that holds something else."""
    made_by = json.loads(json.dumps(dict(info)))
    plain = {"env_id": spec.id, "env_spec": fingerprint(to_json(spec)), "replan_steps": replan_steps, "info": made_by}
    path = directory / RECORD
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DatasetError(f"{path} is damaged: {error}. Use another folder.") from error
        if found != plain:
            raise DatasetError(
                f"{directory} holds a recording of {found}, this one is of {plain}. Episodes of different environments "
                "do not mix: use another folder, or the configuration it was begun with."
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    with durable_file(path) as temporary:
        temporary.write_text(json.dumps(plain), encoding="utf-8")


def _export(
    log: EpisodeLog, starts: Sequence[Start], dataset: Path, spec: EnvSpec, *, only_success: bool, extra: bool
) -> int:
    """Write the wanted episodes in the order of their Starts, so that an interruption leaves no trace."""
    place = {start: i for i, start in reversed(list(enumerate(log.starts)))}
    success = [summary.success for summary in log.summaries()]
    chosen = [start for start in starts if success[place[start]] or not only_success]
    if not chosen:
        raise DatasetError(
            f"None of {len(starts)} episodes succeeded, so there is nothing to export. They are in {log.directory}; "
            "keep failures to export them, too."
        )
    if exported_starts(dataset, spec, privileged=extra) != chosen:
        episodes = (log.read(place[start]) for start in chosen)
        write_lerobot(dataset, episodes, spec, fps=fps_of(spec), privileged=extra)
    return len(chosen)
