"""Record Meta-World's own scripted policy inserting a peg, as a LeRobotDataset v3.

Usage: ``PYTHONPATH=examples uv run python benchmarks/metaworld_demonstrations.py --out DIR [--episodes 20]``

The environment is the one that burnish/envs/gymnasium.py makes of Meta-World's id. An interrupted recording goes on.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from burnish.core.spec import Array, Observation
from burnish.envs.gymnasium import STATE_KEY, Config

ENVIRONMENT_KEY = "observation.environment_state"
TASK = "Insert the peg into the hole in the side of the box."
ENV = Config(
    env_id="metaworld_success:Meta-World/MT1-success",
    kwargs=(("env_name", "peg-insert-side-v3"), ("seed", 0)),
    task=TASK,
    max_episode_steps=200,
    end_on_success=True,
    keys=(("", STATE_KEY), ("", ENVIRONMENT_KEY)),
)
"""The one vector that Meta-World observes is shown under both keys that ACT reads."""


@dataclass(frozen=True)
class Options:
    """Record the scripted policy."""

    out: Path
    """Folder: ``episodes/`` and ``dataset/``."""
    episodes: int = 20
    """How many Starts are run; those that fail stay out of the dataset."""
    num_envs: int = 4
    """Environments run at once."""


def expert(observation: Observation) -> Array:
    """Return the scripted policy's actions (N, 1, 4), cut at the limits of the action space as Meta-World does.

    It knows no state of its own, so one serves all environments.
    """
    from metaworld.policies import SawyerPegInsertionSideV3Policy

    policy = SawyerPegInsertionSideV3Policy()
    actions = [policy.get_action(state.astype(np.float64)) for state in observation[STATE_KEY]]
    chunk: Array = np.clip(np.stack(actions), -1.0, 1.0)[:, None].astype(np.float32)
    return chunk


def main() -> None:
    """Record."""
    from burnish.cli.record import recording_starts
    from burnish.data.record import record

    options = tyro.cli(Options)
    env = ENV.build(options.num_envs)
    try:
        starts = recording_starts(env.spec, options.episodes, (), seed=0)
        done = record(expert, env, starts, options.out, info={"teacher": "SawyerPegInsertionSideV3Policy"})
    finally:
        env.close()
    print(done.text)


if __name__ == "__main__":
    main()
