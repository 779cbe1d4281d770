"""What a run is made of: built parts, and the numbers that belong to none of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from burnish.core.contracts import Controller, Labeler, Objective, Sampler
from burnish.core.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """What makes an algorithm."""

    sampler: Sampler
    labelers: tuple[Labeler, ...]
    """Run in this order."""
    objectives: tuple[Objective, ...]
    controllers: tuple[Controller, ...] = ()


@dataclass(frozen=True)
class TrainNumbers:
    """Numbers of a run that belong to no part."""

    iterations: int = 100
    """How many rollouts and updates."""
    rollout_chunks: int = 64
    """T, decisions of each environment per rollout; episodes go on from one rollout to the next."""
    rollout_episodes: int = 0
    """Above 0: collect this many whole episodes per rollout instead of ``rollout_chunks``."""
    replan_steps: int = 0
    """How many actions of a chunk are executed before the next decision; 0 for all."""
    epochs: int = 4
    """How often a rollout is used, at most."""
    minibatch_size: int = 256
    """Decisions per gradient step, about; minibatches of an epoch are equal to one."""
    learning_rate: Mapping[str, float] = field(default_factory=lambda: {"actor": 3e-4, "critic": 1e-3})
    """Adam's rate by parameter group of the policy; groups not named are not trained."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """"linear" falls to 0 at the last iteration."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 0.5
    """Limit of the gradient norm of each parameter group; 0 for none."""
    warmup_iterations: int = 0
    """Iterations at the start in which only the critic learns (objective ``value``, parameter group ``critic``),
    because advantages of an untrained critic would spoil a pretrained actor. Controllers wait."""
    checkpoint_every: int = 10
    """Iterations between checkpoints; the last iteration always has one."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay; 0 for all."""
    seed: int = 0
    """Root of the run's random streams."""
    replay_tolerance: float = 1e-4
    """Largest allowed |ratio - 1| when log-probs are replayed before an update."""
    max_degenerate_share: float = 0.9
    """Share of degenerate groups above which an iteration counts as useless."""
    degenerate_patience: int = 20
    """How many useless iterations in a row are allowed."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("iterations", "epochs", "minibatch_size", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, found {getattr(self, name)}.")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, found {self.seed}.")
        if self.rollout_episodes < 1 and self.rollout_chunks < 1:
            raise ConfigError("Set rollout_chunks or rollout_episodes to at least 1; found both below.")


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    iterations: int
    checkpoint: Path
    metrics: dict[str, float]
    """Of the last iteration."""
    reason: str
    """Why it ended."""
