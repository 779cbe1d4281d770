"""What experiments on one base policy share: options, running what is missing, and writing the page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from jobs import Job, run_jobs
from result_pages import Group, cost_of, read_group, seed_table, seeds_missing

from burnish.evaluation.results import PACKAGES, MetricResult, ResultFile, git_commit, versions

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Options:
    """Run or go on with the experiment, then write its page in docs/results."""

    folder: Path
    """Where everything is kept."""
    seeds: int = 3
    """Training seeds."""
    episodes: int = 100
    """Paired evaluation episodes of each seed."""
    iterations: int = 100
    """Iterations of each post-training."""
    demonstrations: int = 60
    """Recorded episodes."""
    parallel: int = 1
    """Commands run at once."""
    report_only: bool = False
    """Write the page from what is there."""


@dataclass(frozen=True)
class Page:
    """What an experiment says beside what all say."""

    title: str
    """Heading."""
    made: str
    """How the base and the result were made, markdown."""
    metrics: Mapping[str, MetricResult]
    """Figures by name."""
    notes: Sequence[tuple[str, str]]
    """Further sections, (heading, markdown)."""
    packages: tuple[str, ...] = PACKAGES
    """Whose versions matter."""


def command_of(name: str, options: Options) -> str:
    """Return the command line that repeats an experiment."""
    numbers = ("seeds", "episodes", "iterations", "demonstrations")
    return " ".join(
        [f"uv run python benchmarks/{name}.py", *(f"--{item} {getattr(options, item)}" for item in numbers)]
    )


def main(
    name: str,
    task: str,
    defaults: Options,
    jobs: Callable[[Options], list[Job]],
    describe: Callable[[Options, Group], Page],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run what is missing, then write the page.

    Args:
        name: Of the script and of its page.
        task: Name of the group on the page.
        defaults: Options where the command line has none.
        jobs: Returns every command of the experiment, in order.
        describe: Returns the page's own parts.
        environment: Further environment variables of the commands.
    """
    options = tyro.cli(Options, default=defaults)
    if not options.report_only:
        run_jobs(jobs(options), options.folder / "logs", options.parallel, environment)
    group = read_group(options.folder, task)
    if group is None:
        raise SystemExit(f"No training seed below {options.folder} is finished and evaluated.")
    page, warnings = describe(options, group), group.comparison.warnings
    result = ResultFile(
        name=name,
        title=page.title,
        command=command_of(name, options),
        commit=git_commit(ROOT),
        seeds=list(range(len(group.after))),
        protocol=group.before.protocol,
        cost=cost_of([group], options.folder / "logs"),
        metrics=page.metrics,
        versions=versions(page.packages),
        notes=[
            *seeds_missing([group], options.seeds),
            ("How it was made", page.made),
            ("Paired by episode", seed_table(group)),
            *page.notes,
            *([("What to mind", "\n".join(f"- {text}" for text in warnings))] if warnings else []),
        ],
    )
    print(f"wrote {result.write(ROOT / 'docs/results')[0]}")
