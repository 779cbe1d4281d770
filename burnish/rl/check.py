"""The contract of policies, labelers and objectives, as checks that a component passes or fails with a sentence."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from burnish.core.conformity import copy_of, difference, draw_observation, expect, run_checks
from burnish.core.contracts import EpisodeSummary, Labeler, Objective, TrainablePolicy, ValuePolicy
from burnish.core.errors import CheckError
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, EnvSpec, Observation
from burnish.core.step import TRAINING_SEED_START, Start
from burnish.data.rollout import Batch, Rollout, to_tensors
from burnish.rl.check_policy import check_policy, nudge

__all__ = ["check_labeler", "check_objective", "check_policy", "make_rollout"]


def check_labeler(labeler: Labeler, policy: TrainablePolicy, env_spec: EnvSpec, *, seed: int = 0) -> list[str]:
    """Check that a labeler keeps :class:`burnish.core.contracts.Labeler`, on a made-up rollout.

    Args:
        labeler: What is checked.
        policy: Acts in ``env_spec``.
        env_spec: Where the made-up observations come from.
        seed: Of the rollout.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    reference = policy.clone()
    rollout = make_rollout(policy, env_spec, seed=seed)

    def fields() -> None:
        result = labeler.label(make_rollout(policy, env_spec, seed=seed), policy, reference)
        expect(isinstance(result, Rollout), f"label() returned {type(result).__name__}, not a Rollout.")
        shape = rollout.executed.shape
        for name in ("value", "next_value", "advantage", "return_", "weight"):
            item = getattr(result, name)
            if item is not None:
                found = f"{item.dtype} {item.shape}"
                good = item.shape == shape and item.dtype == np.float32
                expect(good, f"{name} is {found}, expected float32 {shape}.")
                expect(bool(np.isfinite(item[rollout.executed > 0]).all()), f"{name} is not finite.")
        expect(result.reward.shape == rollout.reward.shape, f"reward changed its shape to {result.reward.shape}.")
        past = np.arange(result.reward.shape[-1]) >= result.executed[..., None]
        expect(not result.reward[past].any(), "reward past the executed actions must stay zero.")
        for name, figure in result.metrics.items():
            expect(isinstance(figure, float), f"metric '{name}' is {type(figure).__name__}, not a float.")

    def keeps() -> None:
        result = labeler.label(make_rollout(policy, env_spec, seed=seed), policy, reference)
        for name in ("executed", "terminated", "truncated", "group", "episode", "log_prob"):
            text = difference(getattr(rollout, name), getattr(result, name), name)
            expect(not text, f"a labeler says what experience is worth, not what happened: {text}.")

    def purity() -> None:
        given = make_rollout(policy, env_spec, seed=seed)
        labeler.label(given, policy, reference)
        for name in ("observation", "action_chunk", "reward", "advantage", "return_", "value", "weight"):
            text = difference(getattr(rollout, name), getattr(given, name), name)
            expect(not text, f"label() writes into the rollout that it was given: {text}.")

    def determinism() -> None:
        one, two = (labeler.label(make_rollout(policy, env_spec, seed=seed), policy, reference) for _ in range(2))
        for name in ("reward", "advantage", "return_", "weight"):
            text = difference(getattr(one, name), getattr(two, name), name)
            expect(not text, f"the same rollout is labelled differently the second time: {text}.")

    def weights() -> None:
        before = copy_of(_numpy(policy.state_dict()))
        labeler.label(make_rollout(policy, env_spec, seed=seed), policy, reference)
        text = difference(before, _numpy(policy.state_dict()), "policy.state_dict()")
        expect(not text, f"label() changes the policy: {text}.")

    checks = {"fields": fields, "keeps": keeps, "purity": purity, "determinism": determinism, "weights": weights}
    return run_checks(f"Labeler '{type(labeler).__module__}'", checks)


def check_objective(objective: Objective, policy: TrainablePolicy, env_spec: EnvSpec, *, seed: int = 0) -> list[str]:
    """Check that an objective keeps :class:`burnish.core.contracts.Objective`, on a made-up batch.

    Args:
        objective: What is checked.
        policy: Acts in ``env_spec``.
        env_spec: Where the made-up observations come from.
        seed: Of the batch.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    previous = policy.clone()
    reference = policy.clone()
    nudge(reference, policy, stream(seed, "check_objective"))
    batch = make_rollout(policy, env_spec, seed=seed).batch()
    moved = policy.clone()
    nudge(moved, policy, stream(seed, "check_objective", "moved"), size=0.02)
    drifted = _trainable_like(policy, moved)

    def loss_of(given: Batch) -> tuple[torch.Tensor, Mapping[str, float]]:
        return objective.loss(policy, given, previous=previous, reference=reference)

    def describe() -> None:
        expect(isinstance(objective.name, str) and bool(objective.name), f"name is {objective.name!r}.")
        number = objective.coefficient
        expect(isinstance(number, float) and math.isfinite(number), f"coefficient is {number!r}, not a finite float.")

    def value() -> None:
        loss, metrics = loss_of(batch)
        expect(isinstance(loss, torch.Tensor), f"the loss is {type(loss).__name__}, not a tensor.")
        expect(loss.ndim == 0, f"the loss has shape {tuple(loss.shape)}, expected a scalar.")
        expect(bool(torch.isfinite(loss)), f"the loss is {float(loss)}.")
        for name, figure in metrics.items():
            expect(isinstance(figure, float), f"metric '{name}' is {type(figure).__name__}, not a float.")

    def gradient() -> None:
        with drifted:
            moving = _gradients(policy, loss_of(batch)[0])
        expect(any(bool(item.any()) for item in moving), "the loss changes with no parameter; its gradient is zero.")
        expect(all(bool(torch.isfinite(item).all()) for item in moving), "the gradient is not finite.")

    def others() -> None:
        for name, other in (("previous", previous), ("reference", reference)):
            before = copy_of(_numpy(other.state_dict()))
            loss = loss_of(batch)[0]
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            text = difference(before, _numpy(other.state_dict()), f"{name}.state_dict()")
            expect(not text, f"loss() changes the {name} policy: {text}.")
        for parameter in _parameters(policy):
            parameter.grad = None

    def weights() -> None:
        twice = batch.take(torch.arange(len(batch)).repeat(2))
        one, two = float(loss_of(batch)[0]), float(loss_of(twice)[0])
        expect(math.isclose(one, two, rel_tol=1e-3, abs_tol=1e-5), f"a batch taken twice changes {one} to {two}.")

    checks = {"spec": describe, "value": value, "gradient": gradient, "others": others, "mean": weights}
    return run_checks(f"Objective '{type(objective).__module__}'", checks)


class _trainable_like:  # noqa: N801
    """Within the block, ``policy`` has the weights of another policy."""

    def __init__(self, policy: TrainablePolicy, other: TrainablePolicy) -> None:
        self._policy = policy
        self._own = {key: item.detach().clone() for key, item in policy.state_dict().items()}
        self._other = {key: item.detach().clone() for key, item in other.state_dict().items()}

    def __enter__(self) -> None:
        self._policy.load_state_dict(self._other)

    def __exit__(self, *unused: object) -> None:
        self._policy.load_state_dict(self._own)
