"""PAC-ACT (arXiv 2607.09590): chunk-level PPO for a pretrained action-chunking transformer, near its own prior.

The actor is the pretrained ACT without its CVAE, with a Gaussian of learned width around its chunk. The critic copies
the encoder and also sees privileged entries while training. The update is clipped, held near the policy before it
(beta1), and the reward pays for leaving the pretrained policy (beta2).
"""

from dataclasses import dataclass

from burnish.cli.options import Component
from burnish.cli.train import Run
from burnish.cli.training import Setup, post_train
from burnish.envs.contact import contour
from burnish.policies import act
from burnish.rl.controllers.early_stop import Config as EarlyStop
from burnish.rl.controllers.kl_target import Config as KlTarget
from burnish.rl.labelers.advantage_normalisation import Config as AdvantageNormalisation
from burnish.rl.labelers.behaviour_prior import Config as BehaviourPrior
from burnish.rl.labelers.gae import Config as Gae
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.value import Config as Value
from burnish.rl.samplers.uniform import Config as Uniform
from burnish.rl.train import TrainNumbers


@dataclass(frozen=True)
class Config:
    """Post-train a pretrained chunk policy on contact tasks.

    Numbers marked "paper" are PAC-ACT's; the others are ours.
    """

    env: Component = contour.Config()
    """The environment."""
    policy: Component = act.Config(
        extra_state_keys=("observation.wrench",),
        extra_scale=(0.1,),
        critic_keys=("privileged.bias", "privileged.contact"),
        init_std=0.05,
        noise_correlation=0.9,
    )
    """The policy; ``--policy.path`` takes a stock lerobot folder."""
    checkpoint: str = ""
    """Run or checkpoint folder of the pretrained policy."""
    num_envs: int = 32
    """Environments run at once."""
    workers: int = 0
    """Worker processes; 0 runs in this process."""
    sampler: Uniform = Uniform(tasks=("shift", "wide"))
    """Which Starts run."""
    behaviour_prior: BehaviourPrior = BehaviourPrior(coefficient=0.001, limit=20.0)
    """Penalty in the reward for leaving the pretrained policy; beta2 = 2.0 in the paper."""
    gae: Gae = Gae(gae_lambda=0.8)
    """Advantages over chunks."""
    advantage_normalisation: AdvantageNormalisation = AdvantageNormalisation()
    """Scale of advantages."""
    clipped_ratio: ClippedRatio = ClippedRatio(clip_low=0.4, clip_high=0.4)
    """The surrogate."""
    divergence: Divergence = Divergence(to="previous", coefficient=0.01)
    """KL to the policy before the update; beta1 = 3.0 in the paper."""
    value: Value = Value()
    """The critic."""
    entropy: Entropy = Entropy(coefficient=0.0)
    """Entropy bonus."""
    kl_target: KlTarget = KlTarget(metric="clipped_ratio/clipped", target=0.4, highest=1.0)
    """Learning rate by the size of updates: the share of clipped ratios, which no single far-off decision can rule."""
    early_stop: EarlyStop = EarlyStop(metric="clipped_ratio/clipped", limit=0.6)
    """End of an update that moves too far."""
    numbers: TrainNumbers = TrainNumbers(
        iterations=200,
        rollout_chunks=24,
        epochs=5,
        learning_rate={"actor": 1e-4, "critic": 1e-3},
        learning_rate_schedule="linear",
        checkpoint_every=20,
    )
    """Numbers of the loop."""

    def run(self, run: Run) -> int:
        """Train."""
        optional = ((self.divergence, self.divergence.coefficient), (self.entropy, self.entropy.coefficient))
        setup = Setup(
            recipe="pac_act",
            env=self.env,
            policy=self.policy,
            checkpoint=self.checkpoint,
            num_envs=self.num_envs,
            workers=self.workers,
            sampler=self.sampler,
            labelers=[
                *([self.behaviour_prior] if self.behaviour_prior.coefficient else []),
                self.gae,
                self.advantage_normalisation,
            ],
            objectives=[self.clipped_ratio, self.value, *(item for item, weight in optional if weight)],
            controllers=[self.kl_target, self.early_stop],
            numbers=self.numbers,
        )
        return post_train(setup, run)
