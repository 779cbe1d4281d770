"""``burnish compare A B``: the same episodes side by side, with paired tests, or why that cannot be done."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from burnish.cli.console import console, plain, say
from burnish.cli.options import parse, wants_help
from burnish.core.errors import ConfigError, DatasetError
from burnish.data.durable import durable_text
from burnish.evaluation.compare import compare_seeds
from burnish.evaluation.report import Films, write_report
from burnish.evaluation.result import EvaluationResult
from burnish.evaluation.videos import load_videos


@dataclass(frozen=True)
class Options:
    """Compare evaluations pair by pair: burnish compare BEFORE AFTER [AFTER ...] [options].

    Several AFTERs are training seeds of one method, all evaluated on the same episodes.
    """

    name: str = "default"
    """Name of the evaluation inside a run folder."""
    out: str = ""
    """Folder for comparison.json and comparison.html; beside the evaluation of the first AFTER when empty."""
    more_before: tuple[str, ...] = ()
    """Further evaluations to compare with: where seeds did not start from one policy, one for each AFTER in order."""


def find_evaluation(path: Path, name: str) -> Path:
    """Return the evaluation file that a path stands for: itself, or the named one of a run folder.

    Raises:
        DatasetError: If there is none; lists what exists.
    """
    candidates = [path, path / "evaluation.json", path / "evaluations" / name / "evaluation.json"]
    for candidate in candidates:
        if candidate.is_file() and candidate.suffix == ".json":
            return candidate
    there = sorted(str(item.parent.name) for item in path.glob("evaluations/*/evaluation.json"))
    known = f"It has evaluations: {', '.join(there)}." if there else "It has none."
    raise DatasetError(f"'{path}' has no evaluation '{name}'. {known} Run: burnish eval {path} --name {name}")


def run(arguments: list[str]) -> int:
    """Compare."""
    count = next((i for i, item in enumerate(arguments) if item.startswith("-")), len(arguments))
    if count < 2:
        if wants_help(arguments):
            parse(Options, ["--help"], prog="burnish compare BEFORE AFTER [AFTER ...]")
        raise ConfigError("Name two evaluations: burnish compare BEFORE AFTER; see burnish compare --help.")
    options = parse(Options, arguments[count:], prog="burnish compare BEFORE AFTER [AFTER ...]")
    before_paths = [Path(item) for item in (arguments[0], *options.more_before)]
    after_paths = [Path(item) for item in arguments[1:count]]
    before_files, after_files = (
        [find_evaluation(path, options.name) for path in paths] for paths in (before_paths, after_paths)
    )
    before, after = ([EvaluationResult.load(file) for file in files] for files in (before_files, after_files))
    comparison = compare_seeds(before, after)
    for table in comparison.tables():
        console.print(table)
    for warning in comparison.warnings:
        say(f"[yellow]note:[/] {plain(warning)}")
    folder = Path(options.out) if options.out else after_files[0].parent
    durable_text(folder / "comparison.json", json.dumps(comparison.to_plain(), indent=1))
    runs = [path for path in after_paths if (path / "metrics.jsonl").is_file()]
    films = Films(*(load_videos(files[0].parent / "videos") for files in (before_files, after_files)))
    more = ["--more-before", *options.more_before] if options.more_before else []
    command = shlex.join(["burnish", "compare", *arguments[:count], *more, "--name", options.name])
    report = write_report(folder / "comparison.html", after, before=before, runs=runs, films=films, commands=[command])
    say(f"\nComparison: {folder / 'comparison.json'}\nReport: {report}")
    return 0
