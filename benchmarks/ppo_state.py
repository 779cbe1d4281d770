"""PPO on a state task: environment steps per CPU second, collection and learning together.

HalfCheetah-v5, 8 environments, 128 steps each, 10 epochs, minibatches of 256, separate tanh 64x64 actor and critic,
Adam, one torch thread. burnish runs its `ppo` recipe's parts through `envs/gymnasium.py` and its own trainer; the peers
run their own runners with the same numbers.
"""

from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Case, Round

ENV, ENVS, STEPS, EPOCHS, MINIBATCH, HIDDEN = "HalfCheetah-v5", 8, 128, 10, 256, (64, 64)
ITERATIONS = 3
"""Of collection and update in one round."""
MISSED = (
    "Why the goal is missed: all step the same Gymnasium environment, and its own `step` (physics, and reward in "
    "Python) is about a third of burnish's time, so the rest would have to cost less than 40 % of what it costs the "
    "peer. burnish's update has no autograd any more (gradients by hand, twice as fast); what is left of it is matrix "
    "products, tanh and the cost of calling torch some 80 times per minibatch. More needs a fused kernel, or physics "
    "that is stepped for all environments in one native call. On a busy machine the ratio varies between runs by some "
    "15 %."
)


def burnish() -> Round:
    """Run ``burnish.rl.train.train`` with the parts of the recipe."""
    from burnish.core.seeding import stream
    from burnish.envs.gymnasium import Config as Env
    from burnish.policies.mlp import Config as Policy
    from burnish.rl.labelers.advantage_normalisation import Config as AdvantageNormalisation
    from burnish.rl.labelers.gae import Config as Gae
    from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
    from burnish.rl.objectives.value import Config as Value
    from burnish.rl.samplers.uniform import Config as Uniform
    from burnish.rl.train import Parts, TrainNumbers, train

    env = Env(env_id=ENV).build(ENVS)
    policy = Policy(chunk_steps=1, hidden=HIDDEN, init_std=1.0).build(env.spec, generator=stream(0, "policy"))
    numbers = TrainNumbers(
        iterations=1_000_000,
        checkpoint_every=1_000_000,
        rollout_chunks=STEPS,
        epochs=EPOCHS,
        minibatch_size=MINIBATCH,
        learning_rate={"actor": 3e-4, "critic": 3e-4},
    )
    parts = Parts(
        sampler=Uniform().build(env.spec, generator=stream(0, "sampler")),
        labelers=(Gae().build(), AdvantageNormalisation().build()),
        objectives=(ClippedRatio().build(), Value().build()),
    )
    check_sizes(sum(item.numel() for group in policy.parameter_groups().values() for item in group))
    description = {"policy": {"id": "mlp"}, "env": {"id": "gymnasium"}}

    def run(report: Any) -> None:
        def counted(metrics: Any) -> None:
            check_work(metrics["env_steps"] / metrics["iteration"] * ITERATIONS)
            report(metrics)

        train(policy, env, parts, numbers, run=Path.cwd(), description=description, report=counted)

    return harness.Paced(run, ITERATIONS, ITERATIONS * ENVS * STEPS)


def stable_baselines3() -> Round:
    """Learn with stable-baselines3's PPO."""
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: gymnasium.make(ENV)] * ENVS)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=STEPS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        policy_kwargs={"net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}},
        seed=0,
        device="cpu",
    )
    check_sizes(sum(item.numel() for item in model.policy.parameters()))

    def learn() -> float:
        before = model.num_timesteps
        model.learn(ITERATIONS * ENVS * STEPS, reset_num_timesteps=False)
        return check_work(model.num_timesteps - before)

    return learn


class RslAdapter:
    """Gymnasium's SyncVectorEnv as rsl-rl wants it: tensors, and time limits in the extras."""

    def __init__(self) -> None:
        """Make the environments."""
        import gymnasium
        from gymnasium.vector import AutoresetMode

        self._env = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make(ENV)] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self.num_envs, self.num_actions = ENVS, self._env.single_action_space.shape[0]
        self.max_episode_length, self.device, self.cfg = 1000, "cpu", {}
        import torch

        self.episode_length_buf = torch.zeros(ENVS, dtype=torch.long)
        self._latest = self._tensors(self._env.reset(seed=0)[0])

    def _tensors(self, observation: Any) -> Any:
        import torch
        from tensordict import TensorDict

        return TensorDict({"policy": torch.from_numpy(observation.astype(np.float32))}, batch_size=[ENVS])

    def get_observations(self) -> Any:
        """Return the latest observation."""
        return self._latest

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Execute one action each."""
        import torch

        observation, reward, terminated, truncated, _ = self._env.step(np.clip(actions.numpy(), -1, 1))
        done = terminated | truncated
        self.episode_length_buf += 1
        if done.any():
            self.episode_length_buf[torch.from_numpy(done)] = 0
        self._latest = self._tensors(observation)
        extras = {"time_outs": torch.from_numpy(truncated)}
        return self._latest, torch.from_numpy(reward.astype(np.float32)), torch.from_numpy(done), extras


def rsl_rl() -> Round:
    """Learn with rsl-rl's OnPolicyRunner."""
    from rsl_rl.runners import OnPolicyRunner

    network = {"class_name": "MLPModel", "hidden_dims": list(HIDDEN), "activation": "tanh", "obs_normalization": False}
    config = {
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {
            **network,
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"},
        },
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": EPOCHS,
            "num_mini_batches": ENVS * STEPS // MINIBATCH,
            "learning_rate": 3e-4,
            "schedule": "fixed",
            "entropy_coef": 0.0,
            "max_grad_norm": 0.5,
        },
        "logger": "tensorboard",
    }
    runner = OnPolicyRunner(RslAdapter(), config, log_dir=None, device="cpu")
    networks = (runner.alg.actor, runner.alg.critic)
    check_sizes(sum(item.numel() for network in networks for item in network.parameters()))

    def learn() -> float:
        runner.learn(ITERATIONS)
        return float(ITERATIONS * ENVS * STEPS)

    return learn


def check_sizes(parameters: int) -> None:
    """Refuse a competitor whose networks are not the same."""
    if parameters != 11_085:  # 17-64-64-6 with a log-std, and 17-64-64-1
        raise SystemExit(f"This competitor trains {parameters} parameters, not 11085: it does other work.")


def check_work(env_steps: float) -> float:
    """Refuse a round in which not every environment step was taken."""
    if env_steps != ITERATIONS * ENVS * STEPS:
        raise SystemExit(f"A round took {env_steps} environment steps, not {ITERATIONS * ENVS * STEPS}.")
    return env_steps


def main() -> None:
    """Measure and write."""
    chosen = harness.options("ppo_state", __doc__)
    competitors = {"burnish": burnish, "stable-baselines3": stable_baselines3, "rsl-rl": rsl_rl}
    timings = harness.measure(competitors, chosen.rounds)
    figures = {name: 1 / item.cpu for name, item in timings.items()}
    case = Case(figures.pop("burnish"), figures, goal=2.0, lower_is_better=False)
    note = "" if case.ratio >= (case.goal or 0) else MISSED
    harness.write(
        "ppo_state",
        {"HalfCheetah-v5": case},
        chosen,
        unit="env steps per CPU second",
        about=__doc__ or "",
        packages=("stable-baselines3", "rsl-rl-lib"),
        note=note,
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
