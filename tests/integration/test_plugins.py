"""burnish inside other people's tools, unmodified: lerobot-eval, inspect-robots, stable-baselines3."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from inspect_robots.compat import assert_compatible, check_compatibility
from inspect_robots.conformance import assert_embodiment_conformant
from inspect_robots.embodiment import EmbodimentInfo
from inspect_robots.eval import eval as inspect_eval
from inspect_robots.policy import Policy
from inspect_robots.registry import resolve
from inspect_robots.scene import Scene
from inspect_robots.spaces import ActionSemantics, Box, ObservationSpace
from inspect_robots.task import Task
from inspect_robots.types import Action, Observation, StepResult

from burnish import registry
from burnish.cli.acting import load_acting
from burnish.cli.main import main
from burnish.core.seeding import stream
from burnish.core.step import Start
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Server, running
from burnish.envs import point_mass
from burnish.envs.contact import contour
from burnish.policies import act

NUMBERS = ("--num_envs", "8", "--policy.hidden", "32", "--numbers.replan_steps", "4", "--numbers.iterations", "20")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins") / "run"
    assert main(["train", "ppo", "--out", str(folder), *NUMBERS]) == 0
    return folder


@pytest.mark.slow
def test_stock_lerobot_eval_runs_a_contact_task(tmp_path: Path) -> None:
    spec = contour.Config().build(1).spec
    config = act.Config(extra_state_keys=("observation.wrench",), dim_model=16, n_heads=2, dim_feedforward=16)
    policy = config.build(spec, generator=stream(0, "policy"))
    policy.save(tmp_path / "policy")
    command = [
        *(sys.executable, "-m", "lerobot.scripts.lerobot_eval", f"--policy.path={tmp_path / 'policy'}"),
        *("--env.type=burnish", "--env.task=contact/contour", '--env.config={"episode_seconds": 1.0}'),
        '--env.state_keys=["observation.state", "observation.wrench"]',
        *("--eval.n_episodes=2", "--eval.batch_size=2", "--eval.use_async_envs=false"),
        *("--policy.device=cpu", f"--output_dir={tmp_path / 'out'}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((tmp_path / "out" / "eval_info.json").read_text())
    assert result["overall"]["n_episodes"] == 2
    rewards = result["per_task"][0]["metrics"]["sum_rewards"]
    assert len(rewards) == 2
    assert np.isfinite(rewards).all()


class PointMass:
    """burnish's toy as an embodiment of inspect-robots."""

    def __init__(self) -> None:
        self._env = point_mass.Config().build(1)
        semantics = ActionSemantics("joint_vel", dim_labels=("x", "y"))
        self.info = EmbodimentInfo(
            name="point_mass",
            action_space=Box((2,), np.full(2, -1.0), np.full(2, 1.0), semantics),
            observation_space=ObservationSpace(state_keys=frozenset({"state"})),
            control_hz=20.0,
            is_simulated=True,
        )

    def reset(self, scene: Scene, *, seed: int | None = None) -> Observation:
        return self._seen(self._env.reset([Start("up", int(scene.id), 0)]), scene.instruction)

    def step(self, action: Action) -> StepResult:
        step = self._env.step(np.asarray(action.data, np.float32)[None, None])
        success = bool(step.metrics["success"][0])
        return StepResult(
            self._seen(step.observation, None),
            float(step.reward.sum()),
            bool(step.terminated[0]),
            "success" if success else None,
            bool(step.truncated[0]),
            {"success": success},
        )

    def close(self) -> None:
        self._env.close()

    @staticmethod
    def _seen(observation: dict[str, Any], instruction: str | None) -> Observation:
        return Observation(state={"state": observation["observation.state"][0]}, instruction=instruction)


def test_inspect_robots_finds_and_evaluates_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    policy = resolve("policy", "burnish", source=str(trained), control_mode="joint_vel")
    assert isinstance(policy, Policy)
    assert policy.info.control_hz == pytest.approx(20.0)
    assert (policy.config.action_horizon, policy.config.replan_interval) == (8, 4)
    embodiment = PointMass()
    assert_embodiment_conformant(embodiment.info)
    report = assert_compatible(policy, embodiment)
    assert not report.issues
    scenes = [Scene(str(number), "move up") for number in range(3)]
    task = Task("reach", scenes, "success_at_end", max_steps=60)
    (log,) = inspect_eval(task, policy, embodiment, log_dir=str(tmp_path))
    assert log.status == "success", log
    first, again = (
        policy.act(embodiment.reset(scenes[0])),
        policy.act(embodiment.reset(scenes[0])),
    )
    assert len(first) == 8
    np.testing.assert_array_equal(first.actions[3].data, again.actions[3].data)
    other = resolve("policy", "burnish", source=str(trained))
    assert [issue.code for issue in check_compatibility(other, embodiment).errors] == ["control_mode"]


def test_inspect_robots_reaches_a_policy_behind_a_server(trained: Path) -> None:
    acting = load_acting(trained)
    local = resolve("policy", "burnish", source=str(trained))
    with running(Server(acting.policy, acting.identity(), ServerConfig(port=0))) as server:
        remote = resolve("policy", "burnish", source=server.url)
        seen = PointMass().reset(Scene("0", ""))
        wanted, got = local.act(seen), remote.act(seen)
        remote.reset(Scene("1", ""))
        np.testing.assert_array_equal(got.actions[0].data, wanted.actions[0].data)
        remote._policy.close()


def test_stable_baselines_learns_a_few_steps() -> None:
    from stable_baselines3 import PPO

    (name,) = [item for item in registry.register_envs() if "point_mass" in item]
    env = gymnasium.make(name)
    model = PPO("MultiInputPolicy", env, n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    assert model.num_timesteps == 256
    assert any((now != then).any() for now, then in zip(model.policy.parameters(), before, strict=True))
    env.close()
