import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ProtocolError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import ActionSample
from burnish.deploy.batching import Batcher, empty_observation, stack
from tests.unit.deploy.affine import STATE, WRIST, AffinePolicy


class GatedPolicy(AffinePolicy):
    """Waits at a gate, so that requests pile up while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def act(
        self, observation: Mapping[str, Any], *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        self.entered.set()
        assert self.gate.wait(10)
        return super().act(observation, generator=generator, deterministic=deterministic)


class MeanPolicy(AffinePolicy):
    """Subtracts the mean of the batch, as a network with batch statistics would."""

    def act(
        self, observation: Mapping[str, Any], *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        sample = super().act(observation, generator=generator, deterministic=deterministic)
        return ActionSample(sample.action_chunk - sample.action_chunk.mean(0), sample.log_prob)


class SinglePolicy(AffinePolicy):
    """Takes one observation at a time."""

    def act(
        self, observation: Mapping[str, Any], *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        if len(observation[STATE]) > 1:
            raise ValueError("one at a time")
        return super().act(observation, generator=generator, deterministic=deterministic)


def row(value: float) -> dict[str, Any]:
    return {STATE: np.full((1, 3), value, np.float32), WRIST: np.zeros((1, 8, 6, 3), np.uint8), "task": ["press"]}


def pile_up(
    values: list[float], *, deterministic: bool = True, max_batch: int = 8
) -> tuple[Batcher, GatedPolicy, list]:
    """Ask once, which shuts the thread in, and then for all values; they wait in the queue together."""
    policy = GatedPolicy()
    batcher = Batcher(policy, deterministic=deterministic, max_batch=max_batch, wait_s=0.0)
    answers = [batcher.submit(row(0.0), stream(1, "first"))]
    assert policy.entered.wait(10)
    answers += [batcher.submit(row(value), stream(1, f"client {value}")) for value in values]
    policy.gate.set()
    return batcher, policy, answers


def test_what_waits_together_shares_one_call_with_the_answers_of_each_alone() -> None:
    values = [0.1, 0.2, 0.3]
    batcher, policy, answers = pile_up(values)
    results = [answer.result(10) for answer in answers]
    assert [result.rows for result in results] == [1, 3, 3, 3]
    assert (batcher.calls, batcher.inferences) == (2, 4)
    assert policy.seen[1]["task"] == ["press"] * 3
    for value, result in zip(values, results[1:], strict=True):
        alone = AffinePolicy().act(row(value), generator=stream(0), deterministic=True).action_chunk[0]
        np.testing.assert_allclose(result.chunk, alone, rtol=0, atol=1e-6)
    batcher.close()


def test_a_batch_is_no_larger_than_allowed() -> None:
    batcher, _, answers = pile_up([0.1] * 5, max_batch=2)
    assert [answer.result(10).rows for answer in answers] == [1, 2, 2, 2, 2, 1]
    batcher.close()


def test_sampled_answers_depend_on_the_clients_own_stream_only() -> None:
    values = [0.1, 0.2]
    batcher, _, answers = pile_up(values, deterministic=False)
    for value, answer in zip(values, answers[1:], strict=True):
        alone = AffinePolicy().act(row(value), generator=stream(1, f"client {value}")).action_chunk[0]
        np.testing.assert_array_equal(answer.result(10).chunk, alone)
        assert answer.result().rows == 1
    batcher.close()


@pytest.mark.parametrize(("bad", "error"), [(13.0, RuntimeError), (14.0, ProtocolError)])
def test_an_observation_on_which_the_policy_fails_does_not_fail_the_others(bad: float, error: type[Exception]) -> None:
    batcher, _, answers = pile_up([bad, 0.2])
    with pytest.raises(error):
        answers[1].result(10)
    np.testing.assert_allclose(answers[2].result(10).chunk, 0.2)
    batcher.close()


def test_nobody_waits_when_every_client_has_asked() -> None:
    batcher = Batcher(AffinePolicy(), deterministic=True, max_batch=8, wait_s=3600.0, clients=lambda: 1)
    assert batcher.submit(row(0.5), stream(0)).result(10).rows == 1
    batcher.close()


@pytest.mark.parametrize(
    ("policy", "match"), [(MeanPolicy(), "differs by"), (SinglePolicy(), "ValueError: one at a time")]
)
def test_warm_up_finds_policies_whose_rows_are_not_what_they_are_alone(
    policy: AffinePolicy, match: str, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = Batcher(policy, deterministic=True, max_batch=8, wait_s=3600.0)
    with caplog.at_level(logging.WARNING):
        batcher.warm_up(1)
    assert match in caplog.text
    assert batcher.submit(row(0.5), stream(0)).result(10).rows == 1
    batcher.close()


def test_warm_up_trusts_a_policy_whose_rows_are_independent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Batcher(AffinePolicy(), deterministic=True, max_batch=8).warm_up(1)
    assert not caplog.records


def test_a_request_that_was_given_up_is_not_computed_and_closing_refuses_the_rest() -> None:
    policy = GatedPolicy()
    batcher = Batcher(policy, deterministic=True)
    first = batcher.submit(row(0.0), stream(0))
    assert policy.entered.wait(10)
    given_up, kept = batcher.submit(row(0.1), stream(0)), batcher.submit(row(0.2), stream(0))
    assert given_up.cancel()
    policy.gate.set()
    assert kept.result(10).rows == 1
    assert first.done()
    assert [seen[STATE][0, 0] for seen in policy.seen] == pytest.approx([0.0, 0.2])

    policy.gate.clear()
    policy.entered.clear()
    running = batcher.submit(row(0.0), stream(0))
    assert policy.entered.wait(10)
    waiting = batcher.submit(row(0.1), stream(0))
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while not batcher._closed:
        pass
    policy.gate.set()
    closing.join(10)
    assert running.result(10).rows == 1
    with pytest.raises(ProtocolError, match="stopping"):
        waiting.result(10)
    with pytest.raises(ProtocolError, match="stopping"):
        batcher.submit(row(0.0), stream(0))


def test_stacking_keeps_rows_and_tasks_in_order() -> None:
    both = stack([row(0.1), {**row(0.2), "task": ["lift"]}])
    np.testing.assert_allclose(both[STATE][:, 0], [0.1, 0.2])
    assert both["task"] == ["press", "lift"]
    assert empty_observation(AffinePolicy())[WRIST].shape == (1, 8, 6, 3)


def test_rows_of_a_network_are_what_they_are_alone() -> None:
    from burnish.policies.mlp import Config as MLPConfig

    env = EnvSpec(
        id="toy",
        observation={STATE: ArraySpec((5,), low=-1.0, high=1.0)},
        action=ArraySpec((2,), low=-1.0, high=1.0),
        control_dt=0.1,
        max_episode_steps=10,
        tasks=("t",),
    )
    policy = MLPConfig().build(env, generator=stream(0))
    rows = [{STATE: stream(3, n).standard_normal((1, 5)).astype(np.float32), "task": ["t"]} for n in range(8)]
    together = policy.act(stack(rows), generator=stream(0), deterministic=True).action_chunk
    alone = [policy.act(each, generator=stream(n), deterministic=True).action_chunk[0] for n, each in enumerate(rows)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
