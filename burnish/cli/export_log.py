"""``burnish deploy export-log LOGDIR``: recorded runs as a LeRobotDataset to train on, or as files for viewers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from burnish.cli.console import plain, say
from burnish.cli.options import parse, wants_help
from burnish.core.errors import ConfigError, DatasetError
from burnish.core.spec import EnvSpec, to_json
from burnish.data.episodes import Episode
from burnish.deploy.formats import WRITERS, check_formats
from burnish.deploy.frames import find_runs, read_episode, read_spec

PROG = "burnish deploy export-log LOGDIR [LOGDIR ...]"


@dataclass(frozen=True)
class Options:
    """Turn runs that were made with ``--record`` into one LeRobotDataset v3: what was observed, and what was sent.

    Every run below the folders that are named becomes an episode; a run without frames is named and left out.
    """

    out: str = ""
    """New folder of the dataset; with ``format`` rrd or mcap files go beside each run's log."""
    format: Literal["lerobot", "rrd", "mcap"] = "lerobot"
    """A dataset to train on, or a file for a viewer."""
    only_success: bool = False
    """Leave out episodes that did not succeed; possible where the robot tells success, as environments do."""
    videos: bool = False
    """Store images as compressed video (lossy) instead of PNG."""


def run(arguments: list[str]) -> int:
    """Export."""
    folders = []
    while arguments and not arguments[0].startswith("-"):
        folders.append(Path(arguments[0]))
        arguments = arguments[1:]
    if not folders and not wants_help(arguments):
        raise ConfigError(f"Name the folder of the logs: {PROG} --out DATASET")
    options = parse(Options, arguments, prog=PROG)
    for folder in folders:
        if not folder.is_dir():
            raise DatasetError(f"There is no folder '{folder}'.")
    return _for_viewers(folders, options.format) if options.format != "lerobot" else _dataset(folders, options)


def _for_viewers(folders: list[Path], kind: str) -> int:
    check_formats((kind,))
    runs = sorted({path.parent for folder in folders for path in folder.rglob("ticks.jsonl")})
    if not runs:
        raise DatasetError(f"There is no run below {', '.join(map(str, folders))}: no ticks.jsonl was found.")
    for directory in runs:
        WRITERS[kind](directory, directory / f"run.{kind}")
        say(f"Wrote {directory / f'run.{kind}'}")
    return 0


def _dataset(folders: list[Path], options: Options) -> int:
    from burnish.data.export import fps_of, write_lerobot

    if not options.out:
        raise ConfigError(f"Name the folder of the dataset: {PROG} --out DATASET")
    out = Path(options.out)
    if out.exists():
        raise ConfigError(f"'{out}' exists already; export into a new folder.")
    runs = sorted({path for folder in folders for path in find_runs(folder)})
    if not runs:
        raise DatasetError(
            f"There is no recorded episode below {', '.join(map(str, folders))}. Frames are kept by runs with --record."
        )
    spec = _common_spec(runs)
    outcome = "success" in spec.metrics
    if options.only_success and not outcome:
        raise ConfigError(f"'{spec.id}' does not tell success; leave --only_success out.")
    episodes = _episodes(runs, options.only_success)
    count = write_lerobot(out, episodes, spec, fps=fps_of(spec), outcome=outcome, videos=options.videos)
    say(
        f"Wrote {count} of {len(runs)} episodes to {out}, a LeRobotDataset v3. To train on it: "
        f"burnish train pretrain --dataset {out} --env ..."
    )
    return 0


def _episodes(runs: list[Path], only_success: bool) -> Iterator[Episode]:
    for directory in runs:
        episode, problem = read_episode(directory)
        if problem:
            say(plain(f"{directory}: {problem}."))
        if episode is not None and (episode.success or not only_success):
            yield episode


def _common_spec(runs: list[Path]) -> EnvSpec:
    """Return the spec of all runs.

    Raises:
        DatasetError: If they are of different robots.
    """
    specs: list[tuple[Path, EnvSpec, dict[str, Any]]] = []
    for directory in runs:
        spec, _ = read_spec(directory)
        specs.append((directory, spec, to_json(spec)))
    for directory, spec, same in specs:
        if same != specs[0][2]:
            raise DatasetError(
                f"'{specs[0][0]}' is of '{specs[0][1].id}' and '{directory}' of '{spec.id}', or of another "
                "configuration of it; a dataset holds one kind. Export them into different folders."
            )
    return specs[0][1]
