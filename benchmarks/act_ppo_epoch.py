"""A PPO minibatch of 32 chunk decisions on ACT: chunks per CPU second with cached features of a frozen front part.

Two 96x96 cameras, tokens of 256, chunks of 20, clipped ratio and value loss, Adam; burnish's own `update`. No other
project ships PPO on ACT, so the peers are the same code without the cache: the whole network trained (actor, and a
critic that is a copy of its encoder with its backbone, as in PAC-ACT), and the same front part frozen but run again in
every minibatch. Log-probabilities with and without cached features are checked to agree.
"""

import functools
from typing import Any

import demonstrations as work
import harness
import numpy as np
from harness import Case, Round

DECISIONS = 32
FREEZE: dict[str, dict[str, bool]] = {"maps": {"freeze_backbone": True}, "memory tokens": {"freeze_encoder": True}}
GOALS = {"maps": 7.0, "memory tokens": 25.0}
WHOLE, AGAIN = "whole network", "frozen, run again"


def decisions(policy: Any, cached: bool) -> Any:
    """Return a batch of decisions as burnish prepares it, features cached where a part is frozen."""
    import torch

    from burnish.core.contracts import CachingPolicy
    from burnish.core.step import ActionSample
    from burnish.data.rollout import Batch, to_tensors

    generator = np.random.default_rng(0)
    seen = work.observations(generator, DECISIONS)
    sample = policy.act(seen, generator=generator)
    assert isinstance(policy, CachingPolicy)
    observation = to_tensors(policy.precompute(seen) if cached else seen)
    noise = [torch.from_numpy(generator.normal(size=DECISIONS)).float() for _ in range(3)]
    return Batch(
        observation=observation,
        sample=ActionSample(torch.from_numpy(sample.action_chunk), torch.from_numpy(sample.log_prob)),
        executed=torch.full((DECISIONS,), work.CHUNK),
        advantage=noise[0],
        return_=noise[1],
        value=noise[2],
        weight=torch.ones(DECISIONS),
    )


def train(freeze: dict[str, bool], cached: bool, minibatches: int) -> Round:
    """Update on the same decisions, one minibatch per epoch."""
    import torch

    from burnish.core.contracts import Decision
    from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
    from burnish.rl.objectives.value import Config as Value
    from burnish.rl.update import Optimiser, update

    policy = work.burnish_act(**freeze)
    batch = decisions(policy, cached)
    with torch.no_grad():  # the first update starts from log-probs that agree with those of acting
        again = policy.evaluate(batch.observation, batch.sample, batch.executed).log_prob
    np.testing.assert_allclose(again.numpy(), batch.sample.log_prob.numpy(), atol=1e-3)
    rates = dict.fromkeys(policy.parameter_groups(), 1e-6)
    optimiser = Optimiser(policy, rates, epsilon=1e-5)
    objectives = (ClippedRatio().build(), Value().build())
    previous = policy.clone()

    def epochs() -> float:
        update(
            policy,
            batch,
            objectives,
            optimiser,
            previous=previous,
            reference=previous,
            epochs=minibatches,
            minibatch_size=DECISIONS,
            max_grad_norm=0.5,
            generator=np.random.default_rng(0),
            after_epoch=lambda _: Decision(),
        )
        return minibatches * DECISIONS

    return epochs


def main() -> None:
    """Measure and write."""
    chosen = harness.options("act_ppo_epoch", __doc__)
    competitors = {WHOLE: functools.partial(train, {}, False, 1)}
    for part, freeze in FREEZE.items():
        competitors[f"{part} cached"] = functools.partial(train, freeze, True, 8)
        competitors[f"{part} {AGAIN}"] = functools.partial(train, freeze, False, 2)
    timings = harness.measure(competitors, chosen.rounds)
    figures = {name: 1 / item.cpu for name, item in timings.items()}
    cases = {
        f"{part} cached": Case(
            figures[f"{part} cached"],
            {WHOLE: figures[WHOLE], AGAIN: figures[f"{part} {AGAIN}"]},
            goal=goal,
            against=WHOLE,
            lower_is_better=False,
        )
        for part, goal in GOALS.items()
    }
    harness.write(
        "act_ppo_epoch",
        cases,
        chosen,
        unit="chunks per CPU second",
        about=__doc__ or "",
        packages=("lerobot",),
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
