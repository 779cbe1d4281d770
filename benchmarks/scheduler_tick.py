"""What the chunk scheduler and the safety chain cost per control tick, in CPU microseconds, for 14 joints.

Chunks of 50 follow a smooth path, 25 actions of each run, the next is asked for 10 actions ahead, as a two-armed robot
would do at 50 Hz. "limits" is what is on by default; "all checks" adds speed, acceleration, first action, workspace,
contact force and a curve of five ticks between chunks; "all checks, ensembling" averages chunks instead; in "cut every
tick" the path is faster than the robot may be, so that each tick is slowed down and says so in words. The budget is
50 us, a 400th of the period at 50 Hz.
"""

import functools
from typing import Any

import harness
import numpy as np
from harness import Case, Round

ENTRIES, CHUNK, DT, TICKS, BUDGET_US = 14, 50, 0.02, 20_000, 50.0
STATE, WRENCH = "observation.state", "observation.wrench"
NAMES = tuple(f"joint_{number}" for number in range(ENTRIES))


def checks(*, rate: float, acceleration: float) -> dict[str, Any]:
    """Return every limit of the chain."""
    return {
        "max_rate": rate,
        "max_acceleration": acceleration,
        "max_first_distance": 5.0,
        "position_key": STATE,
        "workspace": NAMES[:3],
        "workspace_low": (-2.0,) * 3,
        "workspace_high": (2.0,) * 3,
        "force_key": WRENCH,
        "force_entries": (0, 1, 2),
    }


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "limits": ({}, {}),
    "all checks": ({"blend_steps": 5, "blend": "bezier"}, checks(rate=3.0, acceleration=30.0)),
    "all checks, ensembling": ({"ensemble_decay": 0.01}, checks(rate=3.0, acceleration=30.0)),
    "cut every tick": ({"blend_steps": 5, "blend": "bezier"}, checks(rate=0.3, acceleration=1.0)),
}


def tick(case: str) -> Round:
    """Run control ticks; nothing is observed or sent."""
    from burnish.core.spec import ArraySpec
    from burnish.deploy import chunking, safety

    action = ArraySpec((ENTRIES,), unit="rad", low=-3.0, high=3.0, names=NAMES)
    seen = {STATE: np.zeros((1, ENTRIES), np.float32), WRENCH: np.ones((1, 6), np.float32)}
    angle = np.arange(5 * CHUNK)[:, None] * DT
    path = np.sin(angle * 2 * np.pi / (4 * CHUNK * DT) + 0.05 * np.arange(ENTRIES)).astype(np.float32)
    scheduling, limits = CASES[case]
    scheduler = chunking.ChunkScheduler(chunking.Config(25, 10, **scheduling), action, CHUNK)
    chain = safety.SafetyChain(safety.Config(**limits), action, DT)

    def run() -> float:
        changed = 0
        for _ in range(TICKS):
            if scheduler.wants_chunk():
                begin = int(scheduler.plan_tick) % (4 * CHUNK)
                scheduler.ask()
                scheduler.arrive(path[begin : begin + CHUNK])
            planned = scheduler.next().action
            assert planned is not None
            verdict = chain.apply(planned, seen)
            changed += bool(verdict.interventions)
            assert not verdict.stop
        share = changed / TICKS
        if (share > 0.9) is not (case == "cut every tick") or 0.1 < share < 0.9:
            raise SystemExit(f"'{case}' changed {100 * share:.0f} % of the actions.")
        return TICKS

    return run


def main() -> None:
    """Measure and write."""
    chosen = harness.options("scheduler_tick", __doc__)
    timings = harness.measure({case: functools.partial(tick, case) for case in CASES}, chosen.rounds)
    harness.write(
        "scheduler_tick",
        {case: Case(1e6 * timings[case].cpu, {"budget": BUDGET_US}, goal=1.0) for case in CASES},
        chosen,
        unit="CPU us per tick",
        about=__doc__ or "",
        note="The peer is the budget; what is observed, inferred, logged and sent is not in it.",
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
