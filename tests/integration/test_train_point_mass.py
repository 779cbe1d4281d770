"""The training loop on the toy: it learns, and a run that is resumed or killed equals one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from burnish.core.contracts import VecEnv
from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import stream
from burnish.envs.point_mass import Config as PointMass
from burnish.policies.mlp import Config as Mlp
from burnish.policies.mlp import MLPPolicy
from burnish.rl.checkpoint import last_checkpoint, load_policy, read_description
from burnish.rl.controllers.early_stop import Config as EarlyStop
from burnish.rl.controllers.kl_target import Config as KlTarget
from burnish.rl.labelers.advantage_normalisation import Config as AdvantageNormalisation
from burnish.rl.labelers.behaviour_prior import Config as BehaviourPrior
from burnish.rl.labelers.gae import Config as Gae
from burnish.rl.labelers.group_relative import Config as GroupRelative
from burnish.rl.log import read_metrics
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.value import Config as Value
from burnish.rl.samplers.group import Config as Group
from burnish.rl.samplers.uniform import Config as Uniform
from burnish.rl.train import Parts, TrainNumbers, TrainResult, train

TIME_KEYS = ("seconds", "env_steps_per_second", "time/collect", "time/label", "time/update")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(seed: int = 0, num_envs: int = 8, **options: Any) -> tuple[MLPPolicy, VecEnv]:
    env = PointMass(**options).build(num_envs)
    policy = Mlp(chunk_steps=4, hidden=(32, 32)).build(env.spec, generator=stream(seed, "weights"))
    return policy, env


def ppo_parts(env: VecEnv, seed: int = 0, *, prior: bool = False) -> Parts:
    labelers = (Gae(discount=0.98).build(), AdvantageNormalisation().build())
    return Parts(
        sampler=Uniform(split="train").build(env.spec, generator=stream(seed, "sampler")),
        labelers=((BehaviourPrior(coefficient=0.01).build(), *labelers) if prior else labelers),
        objectives=(ClippedRatio().build(), Value().build(), Divergence(to="previous", coefficient=0.1).build()),
        controllers=(KlTarget(target=0.02).build(), EarlyStop(limit=0.1, revert_above=10.0).build()),
    )


def group_parts(env: VecEnv, seed: int = 0) -> Parts:
    return Parts(
        sampler=Group(size=4, split="train").build(env.spec, generator=stream(seed, "sampler")),
        labelers=(GroupRelative().build(),),
        objectives=(ClippedRatio(granularity="action").build(),),
    )


def numbers(**changes: Any) -> TrainNumbers:
    defaults: dict[str, Any] = {
        "iterations": 6,
        "rollout_chunks": 10,
        "epochs": 3,
        "minibatch_size": 32,
        "checkpoint_every": 3,
        "learning_rate": {"actor": 1e-3, "critic": 1e-3},
    }
    return TrainNumbers(**defaults | changes)


def go(run: Path, how: str = "ppo", *, resume: bool = False, **changes: Any) -> TrainResult:
    policy, env = make()
    if how == "group":
        changes = {"rollout_episodes": 16, "learning_rate": {"actor": 1e-3}, **changes}
        parts = group_parts(env)
    else:
        parts = ppo_parts(env, prior=how == "prior")
    return train(policy, env, parts, numbers(**changes), run=run, description={"recipe": how}, resume=resume)


def state_of(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    found = {f"policy/{key}": item for key, item in load_file(checkpoint / "policy" / "model.safetensors").items()}
    training = load_file(checkpoint / "training" / "state.safetensors")
    return found | {f"training{key}": item for key, item in training.items()}


def assert_equal_runs(one: Path, two: Path) -> None:
    first, second = state_of(one), state_of(two)
    assert first.keys() == second.keys()
    for key, item in first.items():
        assert torch.equal(item, second[key]), key
    rows = [[{k: v for k, v in row.items() if k not in TIME_KEYS} for row in read_metrics(run)] for run in (one, two)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("how", ["ppo", "group"])
def test_a_seeded_run_learns(tmp_path: Path, how: str) -> None:
    policy, env = make(num_envs=16)
    parts = ppo_parts(env) if how == "ppo" else group_parts(env)
    changes: dict[str, Any] = {"learning_rate": {"actor": 3e-3}, "rollout_episodes": 64} if how == "group" else {}
    begun = time.process_time()
    settings = numbers(iterations=30, rollout_chunks=32, epochs=5, minibatch_size=128, **changes)
    result = train(policy, env, parts, settings, run=tmp_path, description={})
    assert time.process_time() - begun < 60
    success = [row["success"] for row in read_metrics(tmp_path)]
    assert np.mean(success[:3]) < 0.3
    assert np.mean(success[-3:]) > 0.8
    assert result.metrics["replay_error"] < 1e-4


@pytest.mark.parametrize("how", ["ppo", "prior", "group"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, how: str) -> None:
    go(tmp_path / "whole", how)
    go(tmp_path / "parts", how, iterations=3)
    go(tmp_path / "parts", how, resume=True)
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_killed_run_is_resumed_equal(tmp_path: Path) -> None:
    script = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        "from tests.integration.test_train_point_mass import go\n"
        "go(Path(sys.argv[1]), iterations=1000, checkpoint_every=2)\n"
    )
    run, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", script, str(run)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        checkpoint = last_checkpoint(run)
        if checkpoint is not None and int(checkpoint.name) >= 4:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    iterations = int(checkpoint.name) + 3
    go(run, iterations=iterations, checkpoint_every=2, resume=True)
    go(whole, iterations=iterations, checkpoint_every=2)
    assert_equal_runs(run, whole)


def test_the_reference_stays_the_pretrained_policy(tmp_path: Path) -> None:
    go(tmp_path, iterations=3)
    pretrained, _ = make()
    saved = load_file(tmp_path / "reference" / "model.safetensors")
    for key, item in pretrained.state_dict().items():
        assert torch.equal(saved[key], item)
    assert any(not torch.equal(saved[key.removeprefix("policy/")], item)
               for key, item in state_of(tmp_path).items() if key.startswith("policy/"))  # fmt: skip


def test_a_checkpoint_says_what_it_is_and_acts(tmp_path: Path) -> None:
    result = go(tmp_path, iterations=3)
    description = read_description(result.checkpoint)
    assert description["recipe"] == "ppo"
    assert description["env_spec"]["id"] == "point_mass"
    assert description["replan_steps"] == 4
    policy, env = make(seed=7)
    load_policy(result.checkpoint, policy)
    assert policy.spec.chunk_steps == 4
    assert env.num_envs == 8


def test_a_run_folder_is_not_overwritten_nor_resumed_as_another_run(tmp_path: Path) -> None:
    go(tmp_path, iterations=3)
    with pytest.raises(ConfigError, match="Resume it, or name another folder"):
        go(tmp_path, iterations=3)
    with pytest.raises(ConfigError, match=r"numbers.epochs was 3 and is 4"):
        go(tmp_path, resume=True, epochs=4)


def test_groups_that_say_nothing_end_the_run(tmp_path: Path) -> None:
    policy, env = make(reward="sparse", goal_radius=0.001)
    with pytest.raises(CheckError, match="100% of the groups were degenerate"):
        train(
            policy,
            env,
            group_parts(env),
            numbers(rollout_episodes=8, learning_rate={"actor": 1e-3}, degenerate_patience=2),
            run=tmp_path,
            description={},
        )
    rows = read_metrics(tmp_path)
    assert [row["degenerate_groups"] for row in rows] == [2.0, 2.0]


def test_only_the_critic_learns_in_the_warmup(tmp_path: Path) -> None:
    go(tmp_path, iterations=3, warmup_iterations=3)
    pretrained, _ = make()
    found = state_of(tmp_path)
    for key, item in pretrained.state_dict().items():
        same = torch.equal(found[f"policy/{key}"], item)
        assert same != key.startswith("critic."), key


def test_a_policy_that_does_not_replay_its_log_probs_is_stopped(tmp_path: Path) -> None:
    class Drifting(MLPPolicy):
        def act(self, observation: Any, **options: Any) -> Any:
            sample = super().act(observation, **options)
            sample.log_prob[:, 1] += 0.01
            return sample

    plain, env = make()
    policy = Drifting(plain.config, plain.spec, generator=stream(0), statistics=None)
    with pytest.raises(CheckError, match=r"Replay parity failed.*action 1 of the chunk"):
        train(policy, env, ppo_parts(env), numbers(), run=tmp_path, description={})
