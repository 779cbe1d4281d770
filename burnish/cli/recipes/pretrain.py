"""Behaviour cloning: a base policy from demonstrations in a LeRobotDataset."""

from dataclasses import dataclass, field
from pathlib import Path

from burnish.cli.acting import RANGE_FIGURES, RANGES
from burnish.cli.building import build_policy, describe, env_spec_of
from burnish.cli.console import console, say
from burnish.cli.options import Component
from burnish.cli.train import Run
from burnish.core.errors import ConfigError
from burnish.data.dataset import read_lerobot
from burnish.envs.contact import contour
from burnish.policies import act
from burnish.rl.log import progress
from burnish.rl.pretrain import PretrainNumbers, pretrain


@dataclass(frozen=True)
class Config:
    """Imitate demonstrations. The environment tells what actions and observations mean; no episode is run."""

    dataset: str = ""
    """Folder of a LeRobotDataset v3, for example recordings/demonstrations/dataset."""
    env: Component = contour.Config()
    """The environment that the demonstrations are of."""
    policy: Component = act.Config()
    """The policy."""
    cache: str = ""
    """Folder for the decoded dataset; ``cache`` beside the dataset when empty."""
    replan_steps: int = 0
    """Actions of a chunk that the checkpoint says to execute; 0 for all."""
    numbers: PretrainNumbers = field(default_factory=PretrainNumbers)
    """Numbers of the loop."""

    def run(self, run: Run) -> int:
        """Train."""
        if not self.dataset:
            raise ConfigError(
                "Name the demonstrations: --dataset DIR, a LeRobotDataset v3 such as burnish record writes."
            )
        directory = Path(self.dataset)
        dataset = read_lerobot(directory, Path(self.cache) if self.cache else directory.parent / "cache")
        spec = env_spec_of(self.env)
        policy = build_policy(self.policy, spec, seed=self.numbers.seed, statistics=dataset.statistics)
        dataset.check_fit(policy.spec.observation, policy.spec.action, spec.control_dt)
        replan = self.replan_steps or policy.spec.chunk_steps
        description = describe("pretrain", getattr(policy, "config", self.policy), self.env, spec, replan)
        description[RANGES] = {
            key: {name: figure for name, figure in dataset.statistics[key].items() if name in RANGE_FIGURES}
            for key, item in spec.public_observation.items()
            if key in dataset.statistics and len(item.shape) == 1
        }
        with progress(self.numbers.steps, console) as report:
            result = pretrain(
                policy,
                dataset,
                self.numbers,
                run=run.directory,
                description=description,
                resume=run.resume,
                report=report,
            )
        say(f"\nEnded after {result.steps} steps. Next: burnish eval {run.directory}")
        return 0
