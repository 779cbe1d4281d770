"""``burnish compare A B``: the same episodes side by side, with paired tests, or why that cannot be done."""

import json
from dataclasses import dataclass
from pathlib import Path

from burnish.cli.console import console, plain, say
from burnish.cli.options import parse, wants_help
from burnish.core.errors import ConfigError, DatasetError
from burnish.data.durable import durable_text
from burnish.evaluation.compare import compare
from burnish.evaluation.report import Films, write_report
from burnish.evaluation.result import EvaluationResult
from burnish.evaluation.videos import load_videos


@dataclass(frozen=True)
class Options:
    """Compare two evaluations pair by pair: burnish compare BEFORE AFTER [options]."""

    name: str = "default"
    """Name of the evaluation inside a run folder."""
    out: str = ""
    """Folder for comparison.json and comparison.html; beside the evaluation of AFTER when empty."""


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
    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("-"):
        if wants_help(arguments):
            parse(Options, ["--help"], prog="burnish compare BEFORE AFTER")
        raise ConfigError("Name two evaluations: burnish compare BEFORE AFTER; see burnish compare --help.")
    before_path, after_path = Path(arguments[0]), Path(arguments[1])
    options = parse(Options, arguments[2:], prog="burnish compare BEFORE AFTER")
    before_file, after_file = find_evaluation(before_path, options.name), find_evaluation(after_path, options.name)
    before, after = EvaluationResult.load(before_file), EvaluationResult.load(after_file)
    comparison = compare(before, after)
    console.print(comparison.table())
    for warning in comparison.warnings:
        say(f"[yellow]note:[/] {plain(warning)}")
    folder = Path(options.out) if options.out else after_file.parent
    durable_text(folder / "comparison.json", json.dumps(comparison.to_plain(), indent=1))
    runs = [after_path] if (after_path / "metrics.jsonl").is_file() else []
    films = Films(load_videos(before_file.parent / "videos"), load_videos(after_file.parent / "videos"))
    commands = [f"burnish compare {before_path} {after_path} --name {options.name}"]
    report = write_report(
        folder / "comparison.html", [after], before=[before], runs=runs, films=films, commands=commands
    )
    say(f"\nComparison: {folder / 'comparison.json'}\nReport: {report}")
    return 0
