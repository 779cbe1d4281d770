"""What pages of docs/results about a policy before and after training have in common."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jobs import cpu_hours, evaluation_of

from burnish import evaluation_starts, load_checkpoint
from burnish.evaluation.compare import Comparison, compare, compare_seeds, p_text
from burnish.evaluation.result import EvaluationResult, number
from burnish.evaluation.results import Cost, evaluation_cost
from burnish.evaluation.statistics import Estimate


@dataclass(frozen=True)
class Group:
    """One base policy and what training made of it over several seeds."""

    name: str
    """Task, or task and ablation."""
    before: EvaluationResult
    after: tuple[EvaluationResult, ...]
    runs: tuple[Path, ...]
    """Run folders of the seeds."""

    @property
    def comparison(self) -> Comparison:
        """Paired by Start, intervals over seeds and Starts."""
        return compare_seeds([self.before], list(self.after))


def read_group(folder: Path, name: str, prefix: str = "seed", before: str = "default") -> Group | None:
    """Return the finished seeds ``<prefix><n>`` below a folder that has a ``base``, or None where there is none.

    Args:
        folder: Of the task.
        name: Of the group.
        prefix: What the run folders begin with.
        before: Name of the base's evaluation that has the protocol of the runs.
    """
    base = evaluation_of(folder / "base", before)
    runs = [path for path in sorted(folder.glob(f"{prefix}[0-9]*")) if evaluation_of(path).is_file()]
    if not base.is_file() or not runs:
        return None
    after = tuple(EvaluationResult.load(evaluation_of(path)) for path in runs)
    return Group(name, EvaluationResult.load(base), after, tuple(runs))


def seeds_missing(groups: Sequence[Group], wanted: int) -> list[tuple[str, str]]:
    """Return the section that says which groups have fewer training seeds than wanted; none where all are there."""
    short = [f"{group.name} {len(group.after)}" for group in groups if len(group.after) < wanted]
    if not short:
        return []
    text = f"Of {wanted} training seeds there are so far: {', '.join(short)}. The command goes on with the rest."
    return [("Not finished", text)]


def cell(estimate: Estimate) -> str:
    """Return a figure with its interval."""
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def figure_table(comparison: Comparison, figures: Sequence[str]) -> str:
    """Return the table of figures before and after."""
    lines = ["| figure | unit | before | after | difference | p | verdict |", "|---|---|---:|---:|---:|---:|---|"]
    for name in figures:
        item = comparison.metric(name)
        lines.append(
            f"| {name} | {item.spec.unit} | {cell(item.before)} | {cell(item.after)} | {cell(item.difference)} "
            f"| {p_text(item.p_value)} | {item.verdict} |"
        )
    return "\n".join(lines)


def success_by_seed(group: Group) -> str:
    """Return the success of each seed in a sentence."""
    pairs = zip(group.runs, group.after, strict=True)
    return f"Success by seed: {', '.join(f'{run.name} {item.metrics["success"].value:.2f}' for run, item in pairs)}."


def seed_table(group: Group) -> str:
    """Return the paired test of each seed, and of all together."""
    lines = ["| run | pairs | before | after | gained | lost | p (McNemar) |", "|---|--:|--:|--:|--:|--:|--:|"]
    rows = [(run.name, compare(group.before, item)) for run, item in zip(group.runs, group.after, strict=True)]
    if len(rows) > 1:
        rows.append(("all seeds", group.comparison))
    for name, comparison in rows:
        success, test = comparison.metric("success"), comparison.mcnemar
        lines.append(
            f"| {name} | {comparison.pairs} | {number(success.before.value)} | {number(success.after.value)} "
            f"| {test.gained} | {test.lost} | {p_text(test.p_value)} |"
        )
    return "\n".join(lines)


def answer_ms(runs: Sequence[Path], rounds: int = 300) -> list[float]:
    """Return the median CPU time [ms] of one deterministic answer for one environment, of each policy.

    The policies answer in turn, so that what else the machine does falls on all of them alike.

    Args:
        runs: Run folders of one task.
        rounds: Answers of each policy.
    """
    loaded = [load_checkpoint(run) for run in runs]
    env = loaded[0].env_config.build(1)
    observation = env.reset(evaluation_starts(env.spec, 1))
    env.close()
    taken: list[list[float]] = [[] for _ in loaded]
    for turn in range(rounds + 10):
        for times, item in zip(taken, loaded, strict=True):
            begin = time.process_time()
            item.policy.act(observation, generator=np.random.default_rng(turn), deterministic=True)
            times.append(time.process_time() - begin)
    return [1e3 * float(np.median(times[10:])) for times in taken]


def latency(groups: Sequence[Group]) -> str:
    """Return the time of one answer before and after."""
    lines = ["| task | before p50 [ms] | after p50 [ms] | change |", "|---|--:|--:|--:|"]
    for group in groups:
        before, *after = answer_ms([group.runs[0].parent / "base", *group.runs])
        middle = float(np.median(after))
        lines.append(f"| {group.name} | {before:.2f} | {middle:.2f} | {100 * (middle / before - 1):+.1f} % |")
    text = (
        "CPU time of one answer for one environment, measured in turn in one process: median of 300 answers, and the "
        "median over the seeds after."
    )
    return "\n".join([text, "", *lines])


def cost_of(groups: Sequence[Group], logs: Path) -> Cost:
    """Return the cost of all trainings and evaluations; the CPU time is that of every job with a log in ``logs``."""
    steps = 0
    for run in (run for group in groups for run in group.runs):
        rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps += int(json.loads(rows[-1])["env_steps"])
    training = Cost(env_steps=steps, rendered_steps=0, cpu_hours=0.0)
    cost = evaluation_cost([item for group in groups for item in group.after], training)
    return replace(cost, cpu_hours=cpu_hours(logs))
