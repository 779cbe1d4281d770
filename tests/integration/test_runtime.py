"""The local runtime with a real policy, a real simulator, and a real kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.inpainting import Prefix, denoise
from burnish.core.seeding import stream
from burnish.core.spec import PolicySpec
from burnish.core.step import ActionSample, Start
from burnish.data.episodes import Episode, run_episodes
from burnish.deploy.chunking import Config as ChunkingConfig
from burnish.deploy.client import Client
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Identity, Server, running
from burnish.deploy.realtime import Config as InpaintConfig
from burnish.deploy.runtime import Config, run_env
from burnish.deploy.safety import Config as SafetyConfig
from burnish.deploy.ticklog import read_ticks, replay
from burnish.envs import point_mass
from burnish.envs.contact import contour
from burnish.nn.jacobian import velocity_with_vjp
from burnish.policies import mlp

START = Start("up", 3, 7)
WRENCH = "observation.wrench"


def make_policy() -> mlp.MLPPolicy:
    import torch

    spec = point_mass.Config().spec()
    policy = mlp.Config(chunk_steps=4, hidden=(16,)).build(spec, generator=stream(0, "weights"))
    with torch.no_grad():
        policy.actor[-1].weight.mul_(30)  # type: ignore[operator]
    return policy


def evaluated(policy: mlp.MLPPolicy, replan_steps: int) -> Episode:
    def act(observation: Any) -> np.ndarray:
        chunk: np.ndarray = policy.act(observation, generator=stream(0), deterministic=True).action_chunk
        return chunk

    (episode,) = run_episodes(act, point_mass.Config().build(1), [START], replan_steps=replan_steps)
    return episode


@pytest.mark.parametrize("replan_steps", [2, 4])
def test_a_torch_policy_runs_as_in_evaluation(replan_steps: int) -> None:
    policy = make_policy()
    config = Config(chunking=ChunkingConfig(replan_steps))
    report = run_env(policy, point_mass.Config().build(1), START, config)
    episode = evaluated(policy, replan_steps)
    clipped = np.clip(episode.action, -1, 1)
    assert report.action.tobytes() == clipped.tobytes()
    assert report.interventions.get("limit", 0) == int((episode.action != clipped).any(1).sum())
    assert report.return_ == pytest.approx(episode.return_, abs=1e-6)
    assert report.metrics == pytest.approx(episode.metrics)


def test_the_served_policy_answers_as_the_local_one() -> None:
    policy = make_policy()
    state = np.array([0.1, -0.2, 0.0, 0.0, 0.5, 0.5], np.float32)
    wanted = policy.act({"observation.state": state[None]}, generator=stream(0), deterministic=True).action_chunk[0]
    identity = Identity(control_dt=0.05, env_id="point_mass")
    with running(Server(policy, identity, ServerConfig(port=0))) as server, Client(server.url) as client:
        np.testing.assert_array_equal(client.infer({"observation/state": state})["actions"], wanted)


class Press:
    """Asks for a point inside the workpiece, straight below the tool."""

    def __init__(self) -> None:
        spec = contour.Config().build(1).spec
        keys = ("observation.state", WRENCH)
        self.spec = PolicySpec("press", {key: spec.observation[key] for key in keys}, spec.action, 2)

    def act(self, observation: Any, *, generator: np.random.Generator, deterministic: bool = False) -> ActionSample:
        target = observation["observation.state"][:, :3].copy()
        target[:, 2] -= 0.02
        return ActionSample(np.repeat(target[:, None], 2, 1).astype(np.float32), np.zeros((1, 2), np.float32))


def test_force_stops_a_policy_that_presses(tmp_path: Path) -> None:
    env = contour.Config().build(1)
    try:
        config = Config(
            safety=SafetyConfig(
                max_rate=0.2,
                max_first_distance=0.05,
                position_key="observation.state",
                force_key=WRENCH,
                force_entries=(0, 1, 2),
                max_force=8.0,
            )
        )
        report = run_env(Press(), env, Start("nominal", 0, 1), config, log=tmp_path / "run")
    finally:
        env.close()
    assert "the limit is 8 N" in report.stop
    assert report.interventions["force"] == 1
    assert report.metrics["peak_force"] < 60
    assert (np.abs(np.diff(report.action, axis=0)) <= 0.2 * env.spec.control_dt + 1e-6).all()
    _, rows = read_ticks(tmp_path / "run")
    assert rows[-1]["stop"] == report.stop
    assert replay(Press(), tmp_path / "run").same


class TorchFlow:
    """A flow network in torch that reaches for the goal by velocity, behind a server's inference mode."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        spec = point_mass.Config().spec()
        self.spec = PolicySpec(
            "torch_flow", {"observation.state": spec.observation["observation.state"]}, spec.action, 8
        )
        self.network = torch.nn.Sequential(torch.nn.Linear(17, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
        self.prefixes: list[Prefix | None] = []

    def act(self, observation: Any, *, generator: np.random.Generator, deterministic: bool = False) -> ActionSample:
        return self._answer(observation, None, generator)

    def act_with_prefix(
        self, observation: Any, prefix: Prefix, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        return self._answer(observation, prefix, generator)

    def _answer(self, observation: Any, prefix: Prefix | None, generator: np.random.Generator) -> ActionSample:
        import torch

        self.prefixes.append(prefix)
        state = observation["observation.state"][0]
        towards = torch.as_tensor(np.clip(state[4:] - state[:2], -0.5, 0.5))

        def network(x: Any, tau: float) -> Any:
            flat = torch.cat([x.reshape(-1), torch.tensor([tau])])
            return towards - x + 0.3 * self.network(flat).reshape(8, 2)

        with torch.inference_mode():
            noise = generator.standard_normal((8, 2))
            chunk = denoise(velocity_with_vjp(network), noise, prefix=prefix)
        return ActionSample(chunk[None].astype(np.float32), np.zeros((1, 8), np.float32))


def test_a_torch_flow_policy_is_in_painted_through_its_jacobian_under_inference_mode(tmp_path: Path) -> None:
    policy = TorchFlow()
    config = Config(
        warm_up=0,
        max_ticks=60,
        latency_s=0.1,
        chunking=ChunkingConfig(4, 3),
        inpaint=InpaintConfig(initial_delay_steps=2),
    )
    report = run_env(policy, point_mass.Config(max_episode_steps=200).build(1), START, config, log=tmp_path)
    told = [prefix for prefix in policy.prefixes if prefix is not None]
    assert not report.stop
    assert report.in_painted == len(told) >= 10
    assert {prefix.frozen_steps for prefix in told} == {2}
    assert replay(TorchFlow(), tmp_path).same  # the log says what each chunk went on from


KILLED = """
import sys
from pathlib import Path
from burnish.core.step import Start
from burnish.deploy.runtime import Config, run_env
from burnish.envs import point_mass
from tests.integration.test_runtime import make_policy
env = point_mass.Config(max_episode_steps=10_000, goal_radius=1e-6).build(1)
run_env(make_policy(), env, Start("up", 3, 7), Config(clock="real"), log=Path(sys.argv[1]),
        on_tick=lambda row: print(row["tick"], flush=True))
"""


def test_a_killed_run_keeps_its_ticks_and_replays(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if int(line) >= 12:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
    _, rows = read_ticks(tmp_path / "run")
    assert len(rows) >= 13
    assert [row["tick"] for row in rows] == list(range(len(rows)))
    report = replay(make_policy(), tmp_path / "run")
    assert report.decisions >= 2
    assert report.same
