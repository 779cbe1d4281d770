"""Stepping and observing driven cars: agent steps per CPU second, on one core.

Ten synthetic scenes fill 16 worlds with what their logs hold, every road user is driven by (steering, acceleration),
contacts and the road are looked at for each, and each gets an observation of 1848 numbers as large as PufferDrive's: 7
of its own, 31 partners and 232 road segments of 7 each. burnish's compiled core is beside its numpy twin, which does
the same work; both are first checked to agree to 1e-5. PufferDrive's own test of its C simulator takes 24 690 agent
steps a second as its baseline (32 agents, a CARLA map); it looks at more than this, and is not run here.
"""

import functools
from typing import Any

import harness
import numpy as np
from harness import Case, Round

WORLDS, STEPS = 16, 25
GOAL = 100_000.0
"""Agent steps per CPU second on one core."""
CASES = {"with observations": True, "without": False}


def simulator(core: str) -> Any:
    """Return a simulator whose road users are all driven."""
    from burnish.envs.driving.bank import Bank
    from burnish.envs.driving.generator import generate
    from burnish.envs.driving.roads import KINDS
    from burnish.envs.driving.simulator import Simulator

    bank = Bank(32)
    numbers = [bank.add(generate(kind, seed)) for seed in range(2) for kind in KINDS]
    found = Simulator(bank, WORLDS, core=core, everybody=True)
    found.reset([numbers[w % len(numbers)] for w in range(WORLDS)], traffic="policy")
    return found


def commands() -> np.ndarray:
    """Return (steps, W, A, 2) gentle commands."""
    return np.random.default_rng(0).normal(size=(STEPS, WORLDS, 32, 2)) * (0.02, 0.5)


def burnish(core: str, observed: bool) -> Round:
    """Step all worlds from the same beginning in each round."""
    cars, plan = simulator(core), commands()
    begin = cars.snapshot()
    out = np.zeros((WORLDS * 32, 1848), np.float32)

    def run() -> float:
        cars.restore(begin)
        taken = 0
        for command in plan:
            cars.step(others=command)
            who = np.argwhere(cars.state.present)
            if observed:
                cars.observe(who, out[: len(who)])
            taken += len(who)
        return taken

    return run


def check() -> None:
    """Refuse to compare cores that do different work."""
    one, two = simulator("numba"), simulator("numpy")
    for command in commands():
        one.step(others=command)
        two.step(others=command)
    np.testing.assert_array_equal(one.state.events, two.state.events)
    np.testing.assert_allclose(one.observe(), two.observe(), atol=1e-5)


def main() -> None:
    """Measure and write."""
    chosen = harness.options("driving_steps", __doc__)
    check()
    cases, seconds = {}, {}
    for name, observed in CASES.items():
        competitors = {core: functools.partial(burnish, core, observed) for core in ("numba", "numpy")}
        timings = harness.measure(competitors, chosen.rounds)
        figures = {core: 1 / item.cpu for core, item in timings.items()}
        ours, twin = figures["numba"], figures["numpy"]
        peers = {"numpy twin": twin, "goal of 100 000": GOAL}
        cases[name] = Case(ours, peers, goal=1.0, against="goal of 100 000", lower_is_better=False)
        seconds[name] = harness.wall(timings)
    harness.write(
        "driving_steps",
        cases,
        chosen,
        unit="agent steps per CPU second",
        about=__doc__ or "",
        packages=("numba",),
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
