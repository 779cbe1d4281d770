"""PAC-ACT on three contact tasks: pretrain, post-train over seeds, evaluate on the same episodes, write the result.

Usage: ``uv run python benchmarks/pac_act.py [--seeds 5] [--parallel 2] [--folder runs/pac_act]``

Every step is a ``burnish`` command line; what is done is skipped, so the same command goes on after it was stopped. It
writes docs/results/pac_act.md and pac_act.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from jobs import Job, evaluation_job, evaluation_of, run_jobs, training_jobs
from pac_act_page import write_page

ROOT = Path(__file__).parent.parent
TASKS = ("contour", "touch", "peg_insert")
EVALUATE = ("--tasks", "shift", "--videos", "0")
COMMAND = "uv run python benchmarks/pac_act.py"


@dataclass(frozen=True)
class Options:
    """Run or go on with the experiment, then write docs/results/pac_act."""

    seeds: int = 5
    """Training seeds of the main result."""
    ablation_seeds: int = 2
    """Training seeds of each ablation."""
    episodes: int = 100
    """Paired evaluation episodes of each seed."""
    ablation_iterations: int = 40
    """Iterations of each training of an ablation, and of the recipe that they are compared with."""
    demonstrations: int = 60
    """Recorded episodes of each task."""
    parallel: int = 2
    """Commands run at once."""
    folder: Path = Path("runs/pac_act")
    """Where everything is kept."""
    tasks: tuple[str, ...] = TASKS
    """Contact tasks."""
    ablations: bool = True
    """Run the ablations on contour, too."""
    report_only: bool = False
    """Write the page from what is there."""


@dataclass(frozen=True)
class Plan:
    """What differs between tasks."""

    iterations: int
    """Iterations of each training."""
    record: tuple[str, ...] = ()
    """Options of the recording."""
    train: tuple[str, ...] = ()
    """Options on top of the recipe."""


PLANS = {
    "contour": Plan(300),
    "touch": Plan(150),
    "peg_insert": Plan(
        100,
        record=("--teacher.program", "closed_loop"),
        train=(
            *("--policy.init-std", "0.1", "--behaviour-prior.coefficient", "0.0005"),
            *("--numbers.learning-rate.actor", "3e-4", "--numbers.learning-rate.critic", "1e-3"),
        ),
    ),
}


@dataclass(frozen=True)
class Ablation:
    """One change to the recipe on contour."""

    text: str
    """What it is."""
    train: tuple[str, ...] = ()
    """Options on top of the recipe."""
    evaluate: tuple[str, ...] = ()
    """Options of the evaluation of the base with the same protocol; empty for the usual one."""


SINGLE = "single"
"""Name of the base's evaluation with one action per decision."""
ABLATIONS = {
    "reference": Ablation("the recipe, as long as the ablations"),
    "sparse": Ablation("sparse reward, with the behaviour prior", ("--env.reward.sparse", "True")),
    "sparse_no_prior": Ablation(
        "sparse reward, without the behaviour prior",
        ("--env.reward.sparse", "True", "--behaviour-prior.coefficient", "0"),
    ),
    "step_level": Ablation(
        "PPO on single steps: one action per decision, as many environment steps and updates",
        (
            *("--clipped-ratio.granularity", "action", "--numbers.replan-steps", "1"),
            *("--numbers.rollout-chunks", "192", "--numbers.minibatch-size", "2048"),
        ),
        ("--replan-steps", "1", "--name", SINGLE),
    ),
    "discount_per_chunk": Ablation("gamma once per chunk instead of gamma^k", ("--gae.discount-per-chunk", "True")),
}


def jobs_of(options: Options) -> list[Job]:
    """Return every command of the experiment, in order."""
    jobs: list[Job] = []
    for task in options.tasks:
        jobs += _base_jobs(options, task)
    for seed in range(options.seeds):
        for task in options.tasks:
            jobs += _train_jobs(options, task, f"seed{seed}", seed, ())
    if options.ablations and "contour" in options.tasks:
        jobs += _ablation_jobs(options)
    return jobs


def _ablation_jobs(options: Options) -> list[Job]:
    base = options.folder / "contour/base"
    jobs = [
        Job(
            f"contour-base-{SINGLE}",
            ("eval", str(base), *_evaluate(options), *item.evaluate),
            evaluation_of(base, SINGLE),
            after=("contour-pretrain",),
        )
        for item in ABLATIONS.values()
        if item.evaluate
    ]
    for seed in range(options.ablation_seeds):
        for name, item in ABLATIONS.items():
            run = f"{name}-seed{seed}"
            jobs += _train_jobs(options, "contour", run, seed, item.train, options.ablation_iterations)
    return jobs


def _base_jobs(options: Options, task: str) -> list[Job]:
    folder, env = options.folder / task, f"contact/{task}"
    demonstrations, base = folder / "demonstrations", folder / "base"
    count = str(options.demonstrations)
    record = ("record", "--env", env, "--teacher", "contact", "--tasks", "nominal", "--episodes", count)
    record = (*record, *PLANS[task].record)
    pretrain = ("train", "pretrain", "--env", env, "--policy", "act", "--dataset", str(demonstrations / "dataset"))
    numbers = ("--numbers.steps", "2500", "--numbers.minibatch-size", "128")
    return [
        Job(f"{task}-record", (*record, "--out", str(demonstrations)), demonstrations / "dataset/meta/info.json"),
        Job(
            f"{task}-pretrain",
            (*pretrain, *numbers, "--out", str(base)),
            base / "checkpoints/002500/burnish.json",
            after=(f"{task}-record",),
            folder=base,
        ),
        evaluation_job(f"{task}-base", base, _evaluate(options), f"{task}-pretrain"),
    ]


def _evaluate(options: Options) -> tuple[str, ...]:
    return (*EVALUATE, "--episodes", str(options.episodes))


def _train_jobs(
    options: Options, task: str, name: str, seed: int, extra: Sequence[str], iterations: int = 0
) -> list[Job]:
    recipe = ("train", "pac_act", "--env", f"contact/{task}", "--checkpoint", str(options.folder / task / "base"))
    arguments = (*recipe, "--numbers.seed", str(seed), *PLANS[task].train, *extra)
    run, base = options.folder / task / name, f"{task}-base-eval"
    # the environment is named, so that a run with another reward is evaluated under the same protocol
    evaluate = (*_evaluate(options), "--env", f"contact/{task}")
    return training_jobs(f"{task}-{name}", run, arguments, iterations or PLANS[task].iterations, evaluate, base)


def command_of(options: Options) -> str:
    """Return the command line that repeats the experiment."""
    numbers = ("seeds", "ablation_seeds", "episodes", "ablation_iterations", "demonstrations")
    changed = [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in numbers]
    return " ".join([COMMAND, *changed, *([] if options.ablations else ["--no-ablations"])])


def main() -> None:
    """Run what is missing, then write the page."""
    options = tyro.cli(Options)
    if not options.report_only:
        run_jobs(jobs_of(options), options.folder / "logs", options.parallel)
    ablations = {name: (item.text, SINGLE if item.evaluate else "default") for name, item in ABLATIONS.items()}
    page, _ = write_page(options.folder, ROOT / "docs/results", ablations, command_of(options), options.seeds)
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
