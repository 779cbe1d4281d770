"""Proximal policy optimisation on action chunks, for any policy with a critic; the plain recipe to start from."""

from dataclasses import dataclass, field

from burnish.cli.options import Component
from burnish.cli.train import Run
from burnish.cli.training import Setup, post_train
from burnish.envs import point_mass
from burnish.policies import mlp
from burnish.rl.controllers.early_stop import Config as EarlyStop
from burnish.rl.labelers.advantage_normalisation import Config as AdvantageNormalisation
from burnish.rl.labelers.gae import Config as Gae
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.value import Config as Value
from burnish.rl.samplers.uniform import Config as Uniform
from burnish.rl.train import TrainNumbers


@dataclass(frozen=True)
class Config:
    """PPO (arXiv 1707.06347) with chunk-level GAE; no reference policy."""

    env: Component = point_mass.Config()
    """The environment."""
    policy: Component = mlp.Config()
    """The policy."""
    checkpoint: str = ""
    """Run or checkpoint folder to begin with; fresh weights when empty."""
    num_envs: int = 16
    """Environments run at once."""
    workers: int = 0
    """Worker processes; 0 runs in this process."""
    sampler: Uniform = Uniform()
    """Which Starts run."""
    gae: Gae = Gae()
    """Advantages."""
    advantage_normalisation: AdvantageNormalisation = AdvantageNormalisation()
    """Scale of advantages."""
    clipped_ratio: ClippedRatio = ClippedRatio()
    """The surrogate."""
    value: Value = Value()
    """The critic."""
    entropy: Entropy = Entropy(coefficient=0.0)
    """Entropy bonus."""
    early_stop: EarlyStop = EarlyStop()
    """End of an update that moves too far."""
    numbers: TrainNumbers = field(default_factory=TrainNumbers)
    """Numbers of the loop."""

    def run(self, run: Run) -> int:
        """Train."""
        objectives = [self.clipped_ratio, self.value, *([self.entropy] if self.entropy.coefficient else [])]
        setup = Setup(
            recipe="ppo",
            env=self.env,
            policy=self.policy,
            checkpoint=self.checkpoint,
            num_envs=self.num_envs,
            workers=self.workers,
            sampler=self.sampler,
            labelers=[self.gae, self.advantage_normalisation],
            objectives=objectives,
            controllers=[self.early_stop],
            numbers=self.numbers,
        )
        return post_train(setup, run)
