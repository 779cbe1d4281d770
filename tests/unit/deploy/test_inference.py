import threading
from typing import Any

import numpy as np
import pytest

from burnish.core.step import ActionSample
from burnish.deploy.inference import SimulatedInference, ThreadInference
from burnish.deploy.robot import SimulatedClock
from tests.unit.deploy.affine import STATE, make_spec


class Gated:
    """Answers with what it saw, each time it is let through."""

    def __init__(self) -> None:
        self.spec = make_spec(image=False)
        self.gate = threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> ActionSample:
        self.threads.add(threading.current_thread())
        self.gate.acquire()
        if observation[STATE][0, 0] == 13:
            raise TimeoutError("late")
        return ActionSample(np.full((1, 4, 2), observation[STATE][0, 0], np.float32), np.zeros((1, 4)))


def seen(value: float) -> dict[str, Any]:
    return {STATE: np.full((1, 3), value, np.float32)}


def test_an_answer_that_was_discarded_is_never_handed_out() -> None:
    policy = Gated()
    inference = ThreadInference(policy, seed=0, deterministic=True)
    inference.submit(0, seen(1.0))
    inference.discard()
    assert inference.poll(0.0) is None
    inference.submit(1, seen(2.0))
    assert inference.poll(0.01) is None
    policy.gate.release(2)
    answer = inference.poll(10.0)
    assert answer is not None
    assert (answer.number, answer.chunk[0, 0]) == (1, 2.0)
    assert inference.poll(0.0) is None
    inference.close()


def test_what_the_policy_raised_is_raised_even_a_timeout_and_discarded_failures_are_not() -> None:
    policy = Gated()
    inference = ThreadInference(policy, seed=0, deterministic=True)
    policy.gate.release(3)
    inference.submit(0, seen(13.0))
    with pytest.raises(TimeoutError, match="late"):
        inference.poll(10.0)
    inference.submit(1, seen(13.0))
    inference.discard()
    inference.submit(2, seen(3.0))
    answer = inference.poll(10.0)
    assert answer is not None
    assert answer.number == 2
    inference.close()


def test_a_policy_that_never_answers_does_not_keep_the_program_alive() -> None:
    policy = Gated()
    inference = ThreadInference(policy, seed=0, deterministic=True)
    inference.submit(0, seen(1.0))
    assert inference.poll(0.02) is None
    inference.close()
    assert all(thread.daemon for thread in policy.threads)
    policy.gate.release()


def test_simulated_answers_come_after_the_latency_and_may_be_discarded() -> None:
    clock, policy = SimulatedClock(), Gated()
    policy.gate.release(2)
    inference = SimulatedInference(policy, clock, seed=0, deterministic=True, latency_s=0.1, jitter_s=0.0)
    inference.submit(0, seen(1.0))
    assert inference.poll(0.0) is None
    clock.sleep_until(0.1)
    assert inference.poll(0.0) is not None
    inference.submit(1, seen(1.0))
    inference.discard()
    clock.sleep_until(9.0)
    assert inference.poll(0.0) is None
