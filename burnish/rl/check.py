"""Contract checks for components that speak torch; run by our tests, by ``burnish check``, and by third parties."""

import math

import numpy as np
import torch

from burnish.core.conformity import copy_of, difference, draw_observation, expect, run_checks
from burnish.core.contracts import EpisodeSummary, Labeler, Objective, TrainablePolicy
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, EnvSpec
from burnish.core.step import TRAINING_SEED_START, Start
from burnish.data.rollout import Rollout
from burnish.rl.check_policy import check_policy
from burnish.rl.weights import arrays_of, gradients, nudge, weights_of

__all__ = ["check_labeler", "check_objective", "check_policy", "make_rollout"]

CHUNKS, NUM_ENVS = 4, 3
"""T and N of the made-up rollout; each environment runs one whole episode."""
HAPPENED = ("executed", "terminated", "truncated", "group", "episode", "log_prob")
"""What a labeler has no say in."""
WORTH = ("value", "next_value", "advantage", "return_", "weight")
"""What a labeler may set, besides the reward and the chunks to imitate."""


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
    nudge(reference, policy, stream(seed, "check_labeler"))
    rollout = make_rollout(policy, env_spec, seed=seed)

    def label() -> Rollout:
        return labeler.label(make_rollout(policy, env_spec, seed=seed), policy, reference)

    def fields() -> None:
        result = label()
        expect(isinstance(result, Rollout), f"label() returned {type(result).__name__}, not a Rollout.")
        _expect_labels(result, rollout)

    def keeps() -> None:
        _expect_same(rollout, label(), HAPPENED, "a labeler says what experience is worth, not what happened")

    def purity() -> None:
        given = make_rollout(policy, env_spec, seed=seed)
        labeler.label(given, policy, reference)
        names = ("observation", "action_chunk", "reward", *WORTH)
        _expect_same(rollout, given, names, "label() writes into the rollout that it was given")

    def determinism() -> None:
        names = ("action_chunk", "reward", *WORTH)
        _expect_same(label(), label(), names, "the same rollout is labelled differently the second time")

    def weights() -> None:
        before = copy_of(arrays_of(policy))
        label()
        text = difference(before, arrays_of(policy), "state_dict()")
        expect(not text, f"label() changes the policy: {text}.")

    checks = {"fields": fields, "weights": weights, "purity": purity, "determinism": determinism, "keeps": keeps}
    return run_checks(f"Labeler '{type(labeler).__module__}'", checks)


def _expect_labels(result: Rollout, rollout: Rollout) -> None:
    shape, ran = rollout.executed.shape, rollout.executed > 0
    for name in WORTH:
        item = getattr(result, name)
        if item is not None:
            good = item.shape == shape and item.dtype == np.float32
            expect(good, f"{name} is {item.dtype} {item.shape}, expected float32 {shape}.")
            expect(bool(np.isfinite(item[ran]).all()), f"{name} is not finite.")
    for name in ("reward", "action_chunk"):
        before, after = getattr(rollout, name), getattr(result, name)
        good = before.shape == after.shape and before.dtype == after.dtype
        expect(good, f"{name} became {after.dtype} {after.shape}, it was {before.dtype} {before.shape}.")
        expect(bool(np.isfinite(after).all()), f"{name} is not finite.")
    past = np.arange(result.reward.shape[-1]) >= result.executed[..., None]
    expect(not result.reward[past].any(), "the reward past the executed actions must stay zero.")
    for name, figure in result.metrics.items():
        expect(isinstance(figure, float), f"metric '{name}' is {type(figure).__name__}, not a float.")


def _expect_same(one: Rollout, two: Rollout, names: tuple[str, ...], problem: str) -> None:
    for name in names:
        first, second = getattr(one, name), getattr(two, name)
        same = first is second or (first is not None and second is not None)
        text = difference(first, second, name) if same else f"{name} is {type(first)} and {type(second)}"
        expect(not text, f"{problem}: {text}.")


def check_objective(objective: Objective, policy: TrainablePolicy, env_spec: EnvSpec, *, seed: int = 0) -> list[str]:
    """Check that an objective keeps :class:`burnish.core.contracts.Objective`, on a made-up batch.

    Args:
        objective: What is checked.
        policy: Acts in ``env_spec``; has the same weights afterwards.
        env_spec: Where the made-up observations come from.
        seed: Of the batch.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    previous, reference, moved = policy.clone(), policy.clone(), policy.clone()
    nudge(reference, policy, stream(seed, "check_objective", "reference"))
    nudge(moved, policy, stream(seed, "check_objective", "moved"), size=0.02)
    batch = make_rollout(policy, env_spec, seed=seed).batch()

    def describe() -> None:
        name, number = objective.name, objective.coefficient
        expect(isinstance(name, str) and bool(name), f"name must be a text, found {name!r}.")
        expect(isinstance(number, float) and math.isfinite(number), f"coefficient is {number!r}, not a finite float.")

    def value() -> None:
        loss, metrics = objective.loss(policy, batch, previous=previous, reference=reference)
        expect(isinstance(loss, torch.Tensor), f"the loss is {type(loss).__name__}, not a tensor.")
        expect(loss.ndim == 0, f"the loss has shape {tuple(loss.shape)}, expected a scalar.")
        expect(bool(torch.isfinite(loss)), f"the loss is {float(loss.detach())}.")
        for name, figure in metrics.items():
            expect(isinstance(figure, float), f"metric '{name}' is {type(figure).__name__}, not a float.")

    def gradient() -> None:
        with weights_of(policy, moved):  # where the policy still is the previous one, a divergence has no slope
            loss, _ = objective.loss(policy, batch, previous=previous, reference=reference)
            expect(loss.requires_grad, "the loss is not differentiable.")
            found = gradients(policy, loss)
        expect(any(bool(item.any()) for item in found), "the gradient is zero in every parameter.")
        expect(all(bool(torch.isfinite(item).all()) for item in found), "the gradient is not finite.")

    def purity() -> None:
        states = {"policy": policy, "previous policy": previous, "reference policy": reference}
        before = {name: copy_of(arrays_of(item)) for name, item in states.items()}
        objective.loss(policy, batch, previous=previous, reference=reference)
        for name, item in states.items():
            text = difference(before[name], arrays_of(item), "state_dict()")
            expect(not text, f"loss() changes the {name}: {text}.")

    def mean() -> None:
        twice = batch.take(torch.arange(len(batch)).repeat(2))
        with weights_of(policy, moved), torch.no_grad():
            one, two = (
                float(objective.loss(policy, item, previous=previous, reference=reference)[0])
                for item in (batch, twice)
            )
        good = math.isclose(one, two, rel_tol=1e-3, abs_tol=1e-5)
        expect(good, f"a loss is a mean over decisions, but with every decision twice it is {two:.6g}, not {one:.6g}.")

    checks = {"spec": describe, "value": value, "gradient": gradient, "purity": purity, "mean": mean}
    return run_checks(f"Objective '{type(objective).__module__}'", checks)


def make_rollout(policy: TrainablePolicy, env_spec: EnvSpec, *, seed: int = 0) -> Rollout:
    """Return a made-up rollout of whole episodes from one Start, all labels set, as a labeler could get it."""
    generator = stream(seed, "make_rollout")
    steps, shape, count = policy.spec.chunk_steps, (CHUNKS, NUM_ENVS), CHUNKS * NUM_ENVS
    flat = draw_observation(env_spec, count, generator)
    sample = policy.act(flat, generator=generator)

    def fold(item: Array) -> Array:
        return item.reshape(*shape, *item.shape[1:])

    def scalars() -> Array:
        return generator.standard_normal(shape, dtype=np.float32)

    executed = np.full(shape, steps, np.int64)
    executed[-1] = generator.integers(1, steps + 1, NUM_ENVS)
    reward = generator.standard_normal((*shape, steps), dtype=np.float32)
    reward[np.arange(steps) >= executed[..., None]] = 0.0
    ended = np.zeros(shape, bool)
    ended[-1] = True
    succeeded = np.arange(NUM_ENVS) % 2 == 0
    tasks = flat.pop(TASK_KEY)
    start = Start(env_spec.tasks[0], 0, TRAINING_SEED_START)
    episode = np.broadcast_to(np.arange(NUM_ENVS), shape).copy()
    return Rollout(
        observation={
            **{key: fold(item) for key, item in flat.items()},
            TASK_KEY: [tasks[t * NUM_ENVS : (t + 1) * NUM_ENVS] for t in range(CHUNKS)],
        },
        action_chunk=fold(sample.action_chunk),
        trace={key: fold(item) for key, item in sample.trace.items()},
        log_prob=fold(sample.log_prob),
        reward=reward,
        executed=executed,
        terminated=ended & succeeded,
        truncated=ended & ~succeeded,
        last_observation=draw_observation(env_spec, NUM_ENVS, generator),
        last_index=np.array([(CHUNKS - 1, n) for n in range(NUM_ENVS)], np.int64),
        group=np.zeros(shape, np.int64),
        episode=episode.astype(np.int64),
        episodes=tuple(
            EpisodeSummary(
                start,
                int(executed[:, n].sum()),
                float(reward[:, n].sum()),
                bool(succeeded[n]),
                {name: float(name == "success" and succeeded[n]) for name in env_spec.metrics},
            )
            for n in range(NUM_ENVS)
        ),
        episode_numbers=tuple(range(NUM_ENVS)),
        value=scalars(),
        next_value=scalars(),
        advantage=scalars(),
        return_=scalars(),
    )
