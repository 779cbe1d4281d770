"""Post-train an ACT that stock ``lerobot-train`` trained, and load the result in stock lerobot again.

Usage: ``uv run python benchmarks/stock_checkpoint.py [--seeds 3] [--folder runs/stock_checkpoint]``

Records demonstrations of contact/contour, trains lerobot's ACT on them with lerobot's own command, post-trains that
folder with ``burnish train pac_act --policy.path``, and evaluates before and after on the same episodes. What is done
is skipped, so the same command goes on after it was stopped. It writes docs/results/stock_checkpoint.md and .json.
"""

import sys
from pathlib import Path
from typing import Any

from experiment import Options, Page, main
from jobs import Job, evaluation_job, training_jobs
from result_pages import Group, figure_table

from burnish.evaluation.results import MetricResult, metric_results

ENV = ("--env", "contact/contour")
EVALUATE = ("--tasks", "shift", "--videos", "0")
STEPS, BATCH = 2500, 128
"""Of lerobot-train."""
ARCHITECTURE = ("chunk_size=8", "n_action_steps=8", "dim_model=64", "n_heads=4", "dim_feedforward=256")
LAYERS = ("n_encoder_layers=1", "n_decoder_layers=1", "use_vae=false", "optimizer_lr=5e-4")
FIGURES = ("success", "coverage", "share_above_60N", "share_above_30N", "peak_force", "cycle_time")
STATE, ENVIRONMENT, WRENCH = "observation.state", "observation.environment_state", "observation.wrench"
FRAMES = 512
"""Recorded observations on which actions are compared."""
LIMIT = 1e-5
"""Largest difference of actions [m] that counts as the same."""


def dataset_of(options: Options) -> Path:
    """Return the recorded LeRobotDataset."""
    return options.folder / "demonstrations/dataset"


def stock_of(options: Options) -> Path:
    """Return the folder that lerobot-train writes."""
    return options.folder / f"lerobot/checkpoints/{STEPS:06d}/pretrained_model"


def lerobot_arguments(options: Options) -> tuple[str, ...]:
    """Return the options of lerobot-train."""
    policy = ("type=act", *ARCHITECTURE, *LAYERS, "device=cpu", "push_to_hub=false")
    return (
        "--dataset.repo_id=burnish/dataset",
        f"--dataset.root={dataset_of(options)}",
        *(f"--policy.{item}" for item in policy),
        *("--wandb.enable=false", f"--batch_size={BATCH}", f"--steps={STEPS}", f"--save_freq={STEPS}"),
        *("--num_workers=0", "--seed=0", f"--output_dir={options.folder / 'lerobot'}"),
    )


def jobs_of(options: Options) -> list[Job]:
    """Return every command of the experiment, in order."""
    demonstrations, stock, base = options.folder / "demonstrations", stock_of(options), options.folder / "base"
    record = ("record", *ENV, "--teacher", "contact", "--tasks", "nominal", "--episodes", str(options.demonstrations))
    adopt = ("train", "pretrain", *ENV, "--policy", "act", "--policy.path", str(stock))
    untouched = ("--numbers.steps", "1", "--numbers.learning-rate", "0", "--numbers.weight-decay", "0")
    recipe = ("train", "pac_act", *ENV, "--policy.path", str(stock))
    evaluate = (*EVALUATE, "--episodes", str(options.episodes))
    jobs = [
        Job("record", (*record, "--out", str(demonstrations)), dataset_of(options) / "meta/info.json"),
        Job(
            "lerobot-train",
            lerobot_arguments(options),
            stock / "model.safetensors",
            after=("record",),
            program=(str(Path(sys.executable).with_name("lerobot-train")),),
            leftover=options.folder / "lerobot",
        ),
        Job(
            "base",
            (*adopt, "--dataset", str(dataset_of(options)), *untouched, "--out", str(base)),
            base / "checkpoints/000001/burnish.json",
            after=("lerobot-train",),
            folder=base,
        ),
        evaluation_job("base", base, evaluate, "base"),
    ]
    for seed in range(options.seeds):
        arguments = (*recipe, "--numbers.seed", str(seed))
        run = options.folder / f"seed{seed}"
        jobs += training_jobs(run.name, run, arguments, options.iterations, evaluate, "base-eval")
    return jobs


class Frames:
    """Recorded observations, with a wrench drawn at random, to ask several policies the same."""

    def __init__(self, options: Options) -> None:
        """Draw ``FRAMES`` of the demonstrations."""
        import numpy as np

        from burnish.data.dataset import read_lerobot

        dataset = read_lerobot(dataset_of(options), options.folder / "demonstrations/cache")
        draw = np.random.default_rng(0)
        index = draw.choice(len(dataset), min(FRAMES, len(dataset)), replace=False)
        self.observation: dict[str, Any] = dict(dataset.observation(index, (STATE, ENVIRONMENT, WRENCH)))
        self.observation[WRENCH] = draw.normal(0.0, 20.0, self.observation[WRENCH].shape).astype(np.float32)

    def ours(self, run: Path) -> Any:
        """Return the most likely chunks (B, K, A) [m] of a burnish checkpoint."""
        from burnish.cli.building import load_checkpoint
        from burnish.core.seeding import stream

        policy = load_checkpoint(run).policy
        return policy.act(self.observation, generator=stream(0), deterministic=True).action_chunk

    def stock(self, folder: Path, state: tuple[str, ...]) -> Any:
        """Return the chunks (B, K, A) [m] of lerobot's own ACTPolicy and processors, from a folder.

        Args:
            folder: That lerobot-train or burnish wrote.
            state: Vectors joined to lerobot's one ``observation.state``.
        """
        import numpy as np
        import torch
        from lerobot.policies.act.modeling_act import ACTPolicy
        from lerobot.policies.factory import make_pre_post_processors

        policy = ACTPolicy.from_pretrained(folder)
        before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder))
        joined = np.concatenate([self.observation[key] for key in state], -1)
        batch = {STATE: torch.from_numpy(joined), ENVIRONMENT: torch.from_numpy(self.observation[ENVIRONMENT])}
        with torch.inference_mode():
            return after(policy.predict_action_chunk(before(batch))).numpy()


def largest_differences(options: Options, group: Group) -> tuple[float, dict[str, float]]:
    """Return the largest difference of actions [m] of stock lerobot to burnish: before, and by run after."""
    frames = Frames(options)
    before = abs(frames.stock(stock_of(options), (STATE,)) - frames.ours(options.folder / "base")).max()
    after = {}
    for run in group.runs:
        folder = run / f"checkpoints/{options.iterations:06d}"
        after[run.name] = float(abs(frames.stock(folder / "policy", (STATE, WRENCH)) - frames.ours(folder)).max())
    return float(before), after


def describe(options: Options, group: Group) -> Page:
    """Return what the page says."""
    comparison = group.comparison
    before, after = largest_differences(options, group)
    seeds = "\n".join(f"- {name}: {difference:.1e} m" for name, difference in after.items())
    made = (
        "1. `burnish record` wrote demonstrations of the scripted expert, on nominal workpieces, as a LeRobotDataset.\n"
        "2. Stock lerobot trained its own ACT on it:\n\n"
        f"   ```sh\n   lerobot-train {' '.join(lerobot_arguments(options))}\n   ```\n\n"
        "   lerobot lists `observation.wrench` as an input of that policy, because the dataset has it, but its ACT "
        "reads `observation.state` and `observation.environment_state` only: the base does not feel the force.\n"
        f"3. `burnish train pac_act {' '.join(ENV)} --policy.path {stock_of(options)}` post-trained it, with the "
        "recipe's numbers. The wrench is appended to the state there, with weights of zero at the start.\n"
        "4. `burnish eval` ran the same episodes before and after, on workpieces whose pose is misjudged (task "
        "`shift`). The base is the folder of step 2, put into a burnish checkpoint by a step of learning rate 0."
    )
    back = (
        "lerobot's `ACTPolicy.from_pretrained` and its processors load the folder `policy/` of each checkpoint. On "
        f"{FRAMES} recorded states with a wrench drawn at random, the largest difference of its actions to those of "
        f"burnish is:\n\n- before, lerobot's own folder: {before:.1e} m\n{seeds}\n\n"
        f"At most {LIMIT:.0e} m was asked for. Actions are steps of up to some millimetres."
    )
    metrics = metric_results(comparison, "contour", {}, ("success", "coverage", "share_above_60N", "peak_force"))
    worst = MetricResult(1e9 * before, 1e9 * max(after.values()), (None, None), 1e9 * LIMIT, "nm", "lower")
    return Page(
        title="An ACT of stock lerobot-train, post-trained and loaded back",
        made=made,
        metrics={**metrics, "stock_action_difference.contour": worst},
        notes=[("All figures", figure_table(comparison, FIGURES)), ("Back in stock lerobot", back)],
    )


if __name__ == "__main__":
    defaults = Options(Path("runs/stock_checkpoint"), iterations=120)
    main("stock_checkpoint", "contour", defaults, jobs_of, describe)
