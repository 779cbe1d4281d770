"""What the benchmarks of learning from data share: a recorded dataset, and the same ACT in burnish and lerobot.

Two cameras of 96x96, a state of 9 entries, actions of 6, six episodes of 60 frames with pictures that move.
"""

from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import Start
from burnish.data.episodes import Episode

CAMERAS = ("observation.images.front", "observation.images.wrist")
STATE, ACTION = "observation.state", "action"
SIDE, STATE_DIM, ACTION_DIM, EPISODES, FRAMES, FPS = 96, 9, 6, 6, 60, 20
CHUNK, WIDTH, BATCH = 20, 256, 8
"""Actions per chunk, width of ACT's tokens, samples per step."""
SPEC = EnvSpec(
    id="benchmark",
    observation={
        **{key: ArraySpec((SIDE, SIDE, 3), "uint8") for key in CAMERAS},
        STATE: ArraySpec((STATE_DIM,)),
    },
    action=ArraySpec((ACTION_DIM,), low=-1.0, high=1.0),
    control_dt=1 / FPS,
    max_episode_steps=FRAMES,
    tasks=("follow",),
)


def pictures(generator: np.random.Generator, frames: int) -> np.ndarray:
    """Return (frames, SIDE, SIDE, 3) uint8: a smooth ground with a bright disc that moves, as a camera would see."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    ground = generator.uniform(40, 160, 3) + generator.uniform(-0.5, 0.5, 3) * x[..., None]
    noise = generator.normal(0, 4, (SIDE, SIDE, 3))
    angle = np.linspace(0, 2 * np.pi, frames, endpoint=False) + generator.uniform(0, 6)
    centre = SIDE / 2 + 0.3 * SIDE * np.stack([np.cos(angle), np.sin(angle)], 1)
    disc = np.hypot(x - centre[:, 0, None, None], y - centre[:, 1, None, None]) < SIDE / 8
    shown = np.where(disc[..., None], generator.uniform(180, 250, 3), ground + noise)
    return np.clip(shown, 0, 255).astype(np.uint8)


def observations(generator: np.random.Generator, count: int) -> dict[str, Any]:
    """Return an observation of ``count`` environments."""
    state = generator.normal(size=(count, STATE_DIM)).astype(np.float32)
    return {**{key: pictures(generator, count) for key in CAMERAS}, STATE: state, "task": ["follow"] * count}


def record(directory: Path, *, videos: bool) -> None:
    """Write the dataset with lerobot's own class."""
    from burnish.data.dataset import write_lerobot

    generator = np.random.default_rng(0)
    episodes = []
    for number in range(EPISODES):
        seen = observations(generator, FRAMES)
        del seen["task"]
        episodes.append(
            Episode(
                env_id=SPEC.id,
                start=Start("follow", 0, number),
                task="follow",
                action=np.clip(generator.normal(size=(FRAMES, ACTION_DIM)), -1, 1).astype(np.float32),
                reward=np.zeros(FRAMES, np.float32),
                decision=np.arange(FRAMES),
                observation=seen,
                last_observation={key: item[-1] for key, item in seen.items()},
                log_prob=None,
                terminated=False,
                truncated=True,
                metrics={},
            )
        )
    write_lerobot(directory, episodes, SPEC, fps=FPS, videos=videos, outcome=False)


def lerobot_dataset(directory: Path, video_backend: str | None = None) -> Any:
    """Return lerobot's dataset with chunks of actions, as ``lerobot-train`` makes it for ACT."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset(
        "benchmark/benchmark",
        root=directory,
        delta_timestamps={ACTION: [i / FPS for i in range(CHUNK)]},
        video_backend=video_backend,
        return_uint8=True,
    )


def lerobot_loader(dataset: Any) -> Any:
    """Return batches without end, through the sampler and loader of ``lerobot-train`` with ``num_workers=0``."""
    import torch
    from lerobot.datasets.sampler import EpisodeAwareSampler

    bounds = dataset.meta.episodes
    sampler = EpisodeAwareSampler(bounds["dataset_from_index"], bounds["dataset_to_index"], shuffle=True)
    loader = torch.utils.data.DataLoader(dataset, num_workers=0, batch_size=BATCH, sampler=sampler, drop_last=False)
    while True:
        yield from loader


def lerobot_act(*, use_vae: bool) -> Any:
    """Return lerobot's ACT of this size with random weights (nothing is downloaded)."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    inputs = {key: PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE)) for key in CAMERAS}
    config = ACTConfig(
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        dim_model=WIDTH,
        n_heads=8,
        dim_feedforward=1024,
        use_vae=use_vae,
        input_features={**inputs, STATE: PolicyFeature(FeatureType.STATE, (STATE_DIM,))},
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        pretrained_backbone_weights=None,
        device="cpu",
    )
    return ACTPolicy(config)


def burnish_act(*, statistics: Any = None, **freeze: bool) -> Any:
    """Return burnish's ACT with as many layers as lerobot's default."""
    from burnish.policies.act import Config

    config = Config(chunk_steps=CHUNK, dim_model=WIDTH, n_heads=8, dim_feedforward=1024, n_encoder_layers=4, **freeze)
    return config.build(SPEC, generator=np.random.default_rng(0), statistics=statistics)
