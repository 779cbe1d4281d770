"""Post-train a policy on an environment and demonstrations that nobody here wrote: Meta-World's peg insertion.

Usage: ``uv run python benchmarks/metaworld_peg.py [--seeds 3] [--folder runs/metaworld_peg]``

Meta-World's scripted policy demonstrates, ``burnish train pretrain`` imitates it, ``burnish train pac_act`` post-trains
the result, and ``burnish eval`` runs the same episodes before and after; all through burnish/envs/gymnasium.py. What is
done is skipped, so the same command goes on after it was stopped. It writes docs/results/metaworld_peg.md and .json.
"""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from jobs import Job, cpu_hours, evaluation_job, run_jobs, training_jobs
from metaworld_demonstrations import ENV, TASK
from result_pages import Group, cost_of, figure_table, read_group, seed_table, seeds_missing

from burnish.evaluation.results import ResultFile, git_commit, metric_results, versions

ROOT = Path(__file__).parent.parent
NAME = "metaworld_peg"
ENV_OPTIONS = (
    *("--env", "gymnasium", "--env.env-id", ENV.env_id),
    *("--env.kwargs", *(str(item) for pair in ENV.kwargs for item in pair)),
    *("--env.task", ENV.task, "--env.max-episode-steps", str(ENV.max_episode_steps)),
    *("--env.end-on-success", str(ENV.end_on_success)),
)
POLICY = ("--policy", "mlp", "--policy.hidden", "128", "128")
PRETRAIN_STEPS = 2000
RECIPE = (
    *("--sampler.tasks", TASK, "--policy.init-std", "0.1"),
    *("--numbers.rollout-chunks", "25", "--numbers.warmup-iterations", "5"),
    *("--numbers.learning-rate", "actor", "1e-4", "critic", "1e-3"),
)
"""Options on top of the recipe pac_act."""


@dataclass(frozen=True)
class Options:
    """Run or go on with the experiment, then write docs/results/metaworld_peg."""

    seeds: int = 3
    """Training seeds."""
    episodes: int = 100
    """Paired evaluation episodes of each seed."""
    iterations: int = 60
    """Iterations of each post-training."""
    demonstrations: int = 20
    """Episodes that the scripted policy runs; those that succeed are imitated."""
    parallel: int = 1
    """Commands run at once."""
    folder: Path = Path("runs/metaworld_peg")
    """Where everything is kept."""
    report_only: bool = False
    """Write the page from what is there."""


def jobs_of(options: Options) -> list[Job]:
    """Return every command of the experiment, in order."""
    demonstrations, base = options.folder / "demonstrations", options.folder / "base"
    dataset = demonstrations / "dataset"
    evaluate = ("--videos", "0", "--episodes", str(options.episodes))
    pretrain = ("train", "pretrain", *ENV_OPTIONS, *POLICY, "--dataset", str(dataset), "--out", str(base))
    recipe = ("train", "pac_act", *ENV_OPTIONS, *POLICY, *RECIPE, "--checkpoint", str(base))
    jobs = [
        Job(
            "record",
            ("--out", str(demonstrations), "--episodes", str(options.demonstrations)),
            dataset / "meta/info.json",
            program=(str(ROOT / "benchmarks/metaworld_demonstrations.py"),),
        ),
        Job(
            "base",
            (*pretrain, "--numbers.steps", str(PRETRAIN_STEPS)),
            base / f"checkpoints/{PRETRAIN_STEPS:06d}/burnish.json",
            after=("record",),
            folder=base,
        ),
        evaluation_job("base", base, evaluate, "base"),
    ]
    for seed in range(options.seeds):
        run = options.folder / f"seed{seed}"
        arguments = (*recipe, "--numbers.seed", str(seed))
        jobs += training_jobs(run.name, run, arguments, options.iterations, evaluate, "base-eval")
    return jobs


def demonstrated(options: Options) -> tuple[int, int]:
    """Return how many episodes the scripted policy ran, and how many succeeded."""
    from burnish.data.log import EpisodeLog

    summaries = list(EpisodeLog(options.folder / "demonstrations/episodes").summaries())
    return len(summaries), sum(item.success for item in summaries)


def write_page(options: Options, group: Group, command: str) -> Path:
    """Write the page and its JSON; returns the page."""
    comparison = group.comparison
    ran, succeeded = demonstrated(options)
    notes = [
        *seeds_missing([group], options.seeds),
        (
            "How it was made",
            "Nothing inside `burnish/` knows Meta-World. `burnish/envs/gymnasium.py` makes it from its id; "
            "`examples/metaworld_success.py` registers that id, with a reward of 1 at the step at which Meta-World's "
            f"own flag tells success. An episode ends there, or after {ENV.max_episode_steps} steps.\n\n"
            f"1. Meta-World's scripted policy ran {ran} episodes; the {succeeded} that succeeded are the "
            "demonstrations, a LeRobotDataset.\n"
            f"2. `burnish train pretrain` imitated them for {PRETRAIN_STEPS} steps; so few leave the base imperfect on "
            "purpose.\n"
            f"3. `burnish train pac_act` post-trained the base with these options:\n\n"
            f"   ```sh\n   burnish train pac_act {_shell((*ENV_OPTIONS, *POLICY, *RECIPE))}\n   ```\n\n"
            "4. `burnish eval` ran the same episodes before and after; no training episode has their seeds.",
        ),
        ("Paired by episode", seed_table(group)),
        ("All figures", figure_table(comparison, ("success", "return"))),
        *([("What to mind", "\n".join(f"- {text}" for text in comparison.warnings))] if comparison.warnings else []),
    ]
    page = ResultFile(
        name=NAME,
        title="Meta-World's peg insertion, post-trained from its own scripted policy's demonstrations",
        command=command,
        commit=git_commit(ROOT),
        seeds=list(range(len(group.after))),
        protocol=group.before.protocol,
        cost=replace(cost_of([group]), cpu_hours=cpu_hours(options.folder / "logs")),
        metrics=metric_results(comparison, NAME, {}),
        versions=versions(("burnish", "metaworld", "mujoco", "torch", "lerobot", "gymnasium", "numpy", "scipy")),
        notes=notes,
    )
    return page.write(ROOT / "docs/results")[0]


def _shell(arguments: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(arguments)


def main() -> None:
    """Run what is missing, then write the page."""
    options = tyro.cli(Options)
    examples = str(ROOT / "examples")
    sys.path.append(examples)
    if not options.report_only:
        path = os.pathsep.join(filter(None, (examples, os.environ.get("PYTHONPATH", ""))))
        run_jobs(jobs_of(options), options.folder / "logs", options.parallel, {"PYTHONPATH": path})
    group = read_group(options.folder, NAME)
    if group is None:
        raise SystemExit(f"No training seed below {options.folder} is finished and evaluated.")
    names = ("seeds", "episodes", "iterations", "demonstrations")
    command = " ".join([f"uv run python benchmarks/{NAME}.py", *(f"--{n} {getattr(options, n)}" for n in names)])
    print(f"wrote {write_page(options, group, command)}")


if __name__ == "__main__":
    main()
