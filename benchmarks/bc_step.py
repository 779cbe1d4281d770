"""Behaviour cloning of ACT from a dataset on disk: samples per CPU second, data included.

Two 96x96 cameras, tokens of 256, chunks of 20, batches of 8. burnish runs `pretrain` with a frozen backbone: decoded
memory map, features of the frozen part computed once (before the rounds, 360 frames), fused AdamW, no VAE. lerobot runs
the step of `lerobot-train`: its dataset (video) and loader with num_workers=0, its preprocessor, ACTPolicy.forward,
AdamW: as it comes (VAE, backbone trained), with a frozen backbone, and with a frozen backbone and no VAE.
"""

import functools
import tempfile
from pathlib import Path

import demonstrations as work
import harness
import numpy as np
from harness import Case, Round

OURS, THEIRS = 20, 2
"""Steps per round."""
AS_IT_COMES, FROZEN, FROZEN_WITHOUT_VAE = "as it comes", "frozen backbone", "frozen backbone, no VAE"


def burnish(directory: Path, cache: Path) -> Round:
    """Run ``burnish.rl.pretrain.pretrain``."""
    from burnish.data.dataset import read_lerobot
    from burnish.rl.pretrain import PretrainNumbers, pretrain

    dataset = read_lerobot(directory, cache)
    policy = work.burnish_act(statistics=dataset.statistics, freeze_backbone=True)
    numbers = PretrainNumbers(
        steps=1_000_000,
        minibatch_size=work.BATCH,
        learning_rate=1e-5,
        validation_share=0.0,
        log_every=OURS,
        checkpoint_every=1_000_000,
    )
    return harness.Paced(
        lambda report: pretrain(policy, dataset, numbers, run=Path.cwd(), report=report), 1, OURS * work.BATCH
    )


def lerobot(directory: Path, frozen: bool, use_vae: bool) -> Round:
    """Step as ``lerobot-train`` does: load, preprocess, ``update_policy``."""
    import torch
    from accelerate import Accelerator
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.scripts.lerobot_train import update_policy
    from lerobot.utils.logging_utils import AverageMeter, MetricsTracker

    dataset = work.lerobot_dataset(directory)
    policy = work.lerobot_act(use_vae=use_vae)
    if frozen:
        policy.model.backbone.requires_grad_(False)
    preprocessor, _ = make_pre_post_processors(policy.config, dataset_stats=dataset.meta.stats)
    preset = policy.config.get_optimizer_preset()
    optimizer = preset.build([group for group in policy.get_optim_params() if group["params"]])
    accelerator = Accelerator(cpu=True)
    policy, optimizer = accelerator.prepare(policy, optimizer)
    meters = {name: AverageMeter(name) for name in ("loss", "grad_norm", "lr", "update_s", "dataloading_s")}
    tracker = MetricsTracker(work.BATCH, dataset.num_frames, dataset.num_episodes, meters, accelerator=accelerator)
    batches = work.lerobot_loader(dataset)

    def steps() -> float:
        for _ in range(THEIRS):
            batch = next(batches)
            for key in work.CAMERAS:
                if batch[key].dtype == torch.uint8:
                    batch[key] = batch[key].to(torch.float32) / 255.0
            update_policy(tracker, policy, preprocessor(batch), optimizer, preset.grad_clip_norm, accelerator)
        return THEIRS * work.BATCH

    return steps


def check() -> None:
    """Refuse to compare networks that do not answer alike: burnish's from lerobot's directory, by the same input."""
    import torch
    from lerobot.policies.factory import make_pre_post_processors

    from burnish.policies.act import Config

    policy = work.lerobot_act(use_vae=True).eval()
    with tempfile.TemporaryDirectory() as folder:
        policy.save_pretrained(folder)
        for processor in make_pre_post_processors(policy.config, dataset_stats={}):
            processor.save_pretrained(folder)
        ours = Config(path=folder).build(work.SPEC, generator=np.random.default_rng(0))
    seen = work.observations(np.random.default_rng(0), 2)
    batch = {key: torch.from_numpy(seen[key]).permute(0, 3, 1, 2).float() / 255 for key in work.CAMERAS}
    theirs = policy.predict_action_chunk({**batch, work.STATE: torch.from_numpy(seen[work.STATE])})
    found = ours.act(seen, generator=np.random.default_rng(0), deterministic=True).action_chunk
    np.testing.assert_allclose(found, theirs.numpy(), atol=1e-4)


def main() -> None:
    """Measure and write."""
    chosen = harness.options("bc_step", __doc__)
    check()
    with tempfile.TemporaryDirectory(prefix="bc_step-") as folder:
        directory, cache = Path(folder) / "dataset", Path(folder) / "cache"
        work.record(directory, videos=True)
        competitors = {
            "burnish": functools.partial(burnish, directory, cache),
            AS_IT_COMES: functools.partial(lerobot, directory, False, True),
            FROZEN: functools.partial(lerobot, directory, True, True),
            FROZEN_WITHOUT_VAE: functools.partial(lerobot, directory, True, False),
        }
        timings = harness.measure(competitors, chosen.rounds)
    figures = {name: 1 / item.cpu for name, item in timings.items()}
    goals = {AS_IT_COMES: 4.5, FROZEN: 2.0, FROZEN_WITHOUT_VAE: None}
    cases = {
        peer: Case(figures["burnish"], {"lerobot": figures[peer]}, goal=goal, lower_is_better=False)
        for peer, goal in goals.items()
    }
    harness.write(
        "bc_step",
        cases,
        chosen,
        unit="samples per CPU second",
        about=__doc__ or "",
        packages=("lerobot", "accelerate"),
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
