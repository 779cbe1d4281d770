"""Post-train a policy on an environment and demonstrations that nobody here wrote: Meta-World's peg insertion.

Usage: ``uv run python benchmarks/metaworld_peg.py [--seeds 3] [--folder runs/metaworld_peg]``

Meta-World's scripted policy demonstrates, ``burnish train pretrain`` imitates it, ``burnish train pac_act`` post-trains
the result, and ``burnish eval`` runs the same episodes before and after; all through burnish/envs/gymnasium.py. What is
done is skipped, so the same command goes on after it was stopped. It writes docs/results/metaworld_peg.md and .json.
"""

import os
import shlex
from pathlib import Path

from experiment import ROOT, Options, Page, main
from jobs import Job, evaluation_job, training_jobs
from metaworld_demonstrations import ENV, TASK
from result_pages import Group, figure_table

from burnish.evaluation.results import metric_results

ENV_OPTIONS = (
    *("--env", "gymnasium", "--env.env-id", ENV.env_id),
    *("--env.kwargs", *(str(item) for pair in ENV.kwargs for item in pair)),
    *("--env.task", ENV.task, "--env.max-episode-steps", str(ENV.max_episode_steps)),
    *("--env.end-on-success", str(ENV.end_on_success)),
    *("--env.keys", *(item for pair in ENV.keys for item in pair)),
)
POLICY = ("--policy", "act")
PRETRAIN = ("--numbers.steps", "1500", "--numbers.minibatch-size", "128")
RECIPE = (
    *("--sampler.tasks", TASK),
    *("--policy.extra-state-keys", "--policy.extra-scale", "--policy.critic-keys"),
    *("--policy.init-std", "0.15", "--gae.gae-lambda", "0.95", "--numbers.warmup-iterations", "3"),
    *("--numbers.learning-rate.actor", "5e-5", "--numbers.learning-rate.critic", "1e-3"),
    *("--clipped-ratio.clip-low", "0.2", "--clipped-ratio.clip-high", "0.2", "--kl-target.target", "0.2"),
    *("--early-stop.limit", "0.35", "--behaviour-prior.coefficient", "0.002"),
)
"""Options on top of the recipe pac_act; three of them say that there is no force sensor and nothing privileged here."""


def jobs_of(options: Options) -> list[Job]:
    """Return every command of the experiment, in order."""
    demonstrations, base = options.folder / "demonstrations", options.folder / "base"
    dataset = demonstrations / "dataset"
    # the options were chosen by looking at episodes of seed 0
    evaluate = ("--videos", "0", "--episodes", str(options.episodes), "--seed", "1000")
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
            (*pretrain, *PRETRAIN),
            base / f"checkpoints/{int(PRETRAIN[1]):06d}/burnish.json",
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


def describe(options: Options, group: Group) -> Page:
    """Return what the page says."""
    comparison = group.comparison
    ran, succeeded = demonstrated(options)
    made = (
        "Nothing inside `burnish/` knows Meta-World. `burnish/envs/gymnasium.py` makes it from its id; "
        "`examples/metaworld_success.py` registers that id, with a reward of 1 at the step at which Meta-World's own "
        f"flag tells success. An episode ends there, or after {ENV.max_episode_steps} steps.\n\n"
        f"1. Meta-World's scripted policy ran {ran} episodes; the {succeeded} that succeeded are the demonstrations, a "
        "LeRobotDataset.\n"
        f"2. `burnish train pretrain --policy act {' '.join(PRETRAIN)}` imitated them; so few demonstrations leave the "
        "base imperfect, on purpose.\n"
        "3. `burnish train pac_act` post-trained the base with these options:\n\n"
        f"   ```sh\n   burnish train pac_act {shlex.join((*ENV_OPTIONS, *POLICY, *RECIPE))}\n   ```\n\n"
        "4. `burnish eval` ran the same episodes before and after; no training episode has their seeds."
    )
    return Page(
        title="Meta-World's peg insertion, post-trained from demonstrations of its own scripted policy",
        made=made,
        metrics=metric_results(comparison, "metaworld_peg", {}),
        notes=[("All figures", figure_table(comparison, ("success", "return")))],
        packages=("burnish", "metaworld", "mujoco", "torch", "lerobot", "gymnasium", "numpy", "scipy"),
    )


if __name__ == "__main__":
    examples = str(ROOT / "examples")
    path = os.pathsep.join(filter(None, (examples, os.environ.get("PYTHONPATH", ""))))
    defaults = Options(Path("runs/metaworld_peg"), iterations=45, demonstrations=20)
    main("metaworld_peg", "metaworld_peg", defaults, jobs_of, describe, {"PYTHONPATH": path})
