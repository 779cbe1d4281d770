import json

import numpy as np
import pytest
import torch

from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.policies.mlp import Config, MLPPolicy
from burnish.rl import pretrain as module
from burnish.rl.checkpoint import load_policy
from burnish.rl.pretrain import PretrainNumbers, pretrain

ENV = EnvSpec(
    id="test",
    observation={"observation.state": ArraySpec((2,)), "observation.unused": ArraySpec((50,))},
    action=ArraySpec((1,), low=-1.0, high=1.0),
    control_dt=0.1,
    max_episode_steps=10,
    tasks=("t",),
)
POLICY = Config(chunk_steps=3, hidden=(32,), state_keys=("observation.state",))
NUMBERS = PretrainNumbers(
    steps=60, minibatch_size=32, learning_rate=0.02, validation_share=0.1, log_every=20, checkpoint_every=30
)


class Demonstrations:
    """Ten episodes of ten frames; action k of a chunk is half the state's first entry, minus k tenths."""

    def __init__(self):
        self.episode_bounds = np.stack((np.arange(0, 100, 10), np.arange(10, 110, 10)), 1)
        self.state = np.random.default_rng(0).uniform(-1, 1, (100, 2)).astype(np.float32)
        self.keys_read = set()

    def __len__(self):
        return 100

    def observation(self, index, keys=None):
        self.keys_read |= set(keys)
        return {key: self.state[index] for key in keys} | {"task": ["t"] * len(index)}

    def chunks(self, index, chunk_steps, keys=None):
        step = np.arange(chunk_steps, dtype=np.float32)
        chunk = 0.5 * self.state[index, :1, None] - 0.1 * step[None, :, None]
        executed = np.minimum(10 - index % 10, chunk_steps)
        chunk[step[None] >= executed[:, None]] = 99.0
        return self.observation(index, keys), chunk, executed


class Doubled(MLPPolicy):
    """A policy whose frozen front part doubles the state; counts how often that runs."""

    calls = 0

    def precompute(self, observation):
        self.calls += 1
        rest = {key: item for key, item in observation.items() if key != "observation.state"}
        return {**rest, "features.state": 2 * observation["observation.state"]}

    def imitation_loss(self, observation, action_chunk, executed):
        assert "observation.state" not in observation
        plain = {"observation.state": observation["features.state"] / 2}
        return super().imitation_loss(plain, action_chunk, executed)


def make(seed=0):
    return POLICY.build(ENV, generator=stream(seed))


def test_it_learns_the_demonstrations_and_logs_it(tmp_path):
    policy, data, rows = make(), Demonstrations(), []
    result = pretrain(policy, data, NUMBERS, run=tmp_path / "run", report=rows.append, description={"recipe": "x"})
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in logged] == [20, 40, 60]
    assert rows == logged
    assert logged[-1]["loss"] < 0.06
    assert logged[0]["loss"] > 2 * logged[-1]["loss"]
    assert logged[-1]["loss/validation"] < 0.06
    assert data.keys_read == {"observation.state"}
    restored = make(5)
    assert load_policy(result.checkpoint, restored)["recipe"] == "x"
    assert torch.equal(restored.actor[0].weight, policy.actor[0].weight)
    assert not list((tmp_path / "run").glob(".features-*"))


def test_resuming_equals_the_uninterrupted_run(tmp_path):
    whole, parts = make(), make()
    pretrain(whole, Demonstrations(), NUMBERS, run=tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(row):
        if row["iteration"] == 40:
            raise StopError

    with pytest.raises(StopError):
        pretrain(parts, Demonstrations(), NUMBERS, run=tmp_path / "parts", report=stop)
    again = make(9)
    pretrain(again, Demonstrations(), NUMBERS, run=tmp_path / "parts", resume=True)
    for key, item in whole.state_dict().items():
        assert torch.equal(item, again.state_dict()[key])
    logged = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in logged] == [20, 40, 60]


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_frozen_features_are_computed_once_and_change_nothing(tmp_path, monkeypatch, memory):
    monkeypatch.setattr(module, "MEMORY_BYTES", memory)
    plain = make()
    cached = Doubled(POLICY, plain.spec, generator=stream(0), statistics=None)
    pretrain(plain, Demonstrations(), NUMBERS, run=tmp_path / "plain")
    pretrain(cached, Demonstrations(), NUMBERS, run=tmp_path / "cached")
    assert cached.calls == 1
    torch.testing.assert_close(plain.actor[0].weight, cached.actor[0].weight)


def test_a_run_is_not_overwritten_and_not_resumed_with_other_numbers(tmp_path):
    numbers = PretrainNumbers(steps=1, minibatch_size=4)
    pretrain(make(), Demonstrations(), numbers, run=tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        pretrain(make(), Demonstrations(), numbers, run=tmp_path)
    other = PretrainNumbers(steps=1, minibatch_size=8)
    with pytest.raises(ConfigError, match="minibatch_size is 8, was 4"):
        pretrain(make(), Demonstrations(), other, run=tmp_path, resume=True)


def test_a_loss_that_is_not_finite_is_refused(tmp_path):
    data = Demonstrations()
    data.state[:] = np.nan
    with pytest.raises(CheckError, match="not finite"):
        pretrain(make(), data, NUMBERS, run=tmp_path)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"minibatch_size": 0}, {"validation_share": 1.0}])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ConfigError, match="pretrain"):
        PretrainNumbers(**bad)
