"""Chunks carry their own number and plan tick as values, so that every action tells where it came from."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.spec import ArraySpec
from burnish.deploy.chunking import ChunkScheduler, Config, Tick
from burnish.deploy.seams import bezier_seam

ACTION = ArraySpec((2,))


def chunk_at(number: int, tick: int, steps: int) -> np.ndarray:
    """Return actions (number, plan tick)."""
    return np.stack([np.full(steps, number), tick + np.arange(steps)], -1).astype(np.float32)


def simulate(scheduler: ChunkScheduler, steps: int, delays: list[int], ticks: int) -> list[Tick]:
    """Run control ticks; the n-th chunk arrives ``delays[n]`` control ticks after it was asked for."""
    done: list[Tick] = []
    pending: tuple[int, np.ndarray] | None = None
    number = 0
    for now in range(ticks):
        if pending is not None and pending[0] <= now:
            scheduler.arrive(pending[1])
            pending = None
        if scheduler.wants_chunk():
            chunk = chunk_at(number, scheduler.plan_tick, steps)
            scheduler.ask()
            delay = delays[number % len(delays)]
            number += 1
            if delay == 0:
                scheduler.arrive(chunk)
            else:
                pending = (now + delay, chunk)
        done.append(scheduler.next())
    return done


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, Config, list[int]]:
    steps = draw(st.integers(1, 8))
    replan = draw(st.integers(1, steps))
    config = Config(replan, draw(st.integers(0, replan)), draw(st.booleans()))
    return steps, config, draw(st.lists(st.integers(0, 25), min_size=1, max_size=6))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_plan_tick_is_skipped_or_repeated_and_starvation_holds(case: tuple[int, Config, list[int]]) -> None:
    steps, config, delays = case
    done = simulate(ChunkScheduler(config, ACTION, steps), steps, delays, 80)
    planned = [tick for tick in done if tick.kind == "plan"]
    assert [int(tick.action[1]) for tick in planned if tick.action is not None] == list(range(len(planned)))
    last = None
    for tick in done:
        if tick.kind == "wait":
            assert last is None
            assert tick.action is None
        elif tick.kind == "hold":
            np.testing.assert_array_equal(tick.action, last)
        last = tick.action
    assert len(planned) >= 80 // (max(delays) + 1) - 1


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_cold_start_begins_at_index_0_whatever_the_delay(case: tuple[int, Config, list[int]]) -> None:
    steps, config, delays = case
    done = simulate(ChunkScheduler(config, ACTION, steps), steps, delays, 80)
    first = next(tick for tick in done if tick.kind == "plan")
    assert (first.chunk, first.index) == (0, 0)
    assert sum(tick.kind == "wait" for tick in done) == delays[0]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_without_delay_and_prefetch_exactly_replan_steps_of_each_chunk_run(case: tuple[int, Config, list[int]]) -> None:
    steps, config, _ = case
    config = Config(config.replan_steps, 0, config.run_tail)
    done = simulate(ChunkScheduler(config, ACTION, steps), steps, [0], 40)
    assert [(tick.chunk, tick.index) for tick in done] == [divmod(i, config.replan_steps) for i in range(40)]


def test_the_index_after_a_delay_is_the_number_of_actions_that_ran() -> None:
    scheduler = ChunkScheduler(Config(replan_steps=4, prefetch_steps=2), ACTION, 8)
    done = simulate(scheduler, 8, [0, 3], 8)
    assert [(tick.chunk, tick.index) for tick in done] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (2, 0), (2, 1),
    ]  # fmt: skip


def test_a_chunk_after_starvation_is_entered_where_the_robot_stands() -> None:
    scheduler = ChunkScheduler(Config(), ACTION, 2)
    scheduler.ask()
    scheduler.arrive(chunk_at(0, 0, 2))
    scheduler.next()
    scheduler.next()
    assert scheduler.wants_chunk()
    scheduler.ask()
    assert [scheduler.next().kind for _ in range(21)] == ["hold"] * 21
    assert scheduler.arrive(chunk_at(1, 2, 2)) == 0


def test_without_tail_the_last_action_is_held_past_replan_steps() -> None:
    kinds = [
        [tick.kind for tick in simulate(ChunkScheduler(Config(2, 0, tail), ACTION, 4), 4, [0, 9], 5)]
        for tail in (True, False)
    ]
    assert kinds == [["plan"] * 4 + ["hold"], ["plan"] * 2 + ["hold"] * 3]


def test_blending_fades_the_new_chunk_in() -> None:
    scheduler = ChunkScheduler(Config(replan_steps=1, blend_steps=3), ArraySpec((1,)), 4)
    scheduler.ask()
    scheduler.arrive(np.zeros((4, 1), np.float32))
    scheduler.next()
    scheduler.ask()
    scheduler.arrive(np.full((4, 1), 8.0, np.float32))
    values = [tick.action.item() for tick in (scheduler.next() for _ in range(4)) if tick.action is not None]
    assert values == [2.0, 4.0, 6.0, 8.0]


def test_bezier_takes_over_with_continuous_velocity() -> None:
    scheduler = ChunkScheduler(Config(replan_steps=3, blend_steps=3, blend="bezier"), ArraySpec((1,)), 8)
    scheduler.ask()
    scheduler.arrive(np.arange(8, dtype=np.float32)[:, None])  # one per tick
    for _ in range(3):
        scheduler.next()
    scheduler.ask()
    scheduler.arrive(np.full((8, 1), 10.0, np.float32))
    values = [scheduler.next().action.item() for _ in range(5)]  # type: ignore[union-attr]
    # from 2 at one per tick to 10 at rest in four ticks
    wanted = bezier_seam(*(np.array([x]) for x in (2.0, 1.0, 10.0, 0.0)), 3)[:, 0]
    assert values == pytest.approx([*wanted, 10.0, 10.0], rel=1e-6)


def test_a_curve_out_of_a_hold_begins_at_rest() -> None:
    scheduler = ChunkScheduler(Config(blend_steps=2, blend="bezier"), ArraySpec((1,)), 3)
    scheduler.ask()
    scheduler.arrive(np.array([[0.0], [1.0], [2.0]], np.float32))
    for _ in range(3):
        scheduler.next()
    scheduler.ask()
    assert scheduler.next().kind == "hold"
    scheduler.arrive(np.full((3, 1), 5.0, np.float32))
    values = [scheduler.next().action.item() for _ in range(3)]  # type: ignore[union-attr]
    wanted = bezier_seam(*(np.array([x]) for x in (2.0, 0.0, 5.0, 0.0)), 2)[:, 0]
    assert values == pytest.approx([*wanted, 5.0], rel=1e-6)


def slow_scheduler(**fields: Any) -> ChunkScheduler:
    scheduler = ChunkScheduler(Config(6, 4), ArraySpec((1,)), 8, slow_steps=4, **fields)
    scheduler.ask()
    scheduler.arrive(np.arange(8, dtype=np.float32)[:, None])
    return scheduler


def test_slow_decelerates_evenly_to_the_end_of_the_plan_and_accelerates_again() -> None:
    scheduler = slow_scheduler()
    done = [scheduler.next() for _ in range(3)]
    assert scheduler.wants_chunk()
    scheduler.ask()
    done += [scheduler.next() for _ in range(20)]
    assert [tick.kind for tick in done[:4]] == ["plan"] * 4  # there are more left than it takes to stop
    kinds = "".join(tick.kind[0] for tick in done)
    assert kinds.strip("h").lstrip("p").strip("s") == ""
    values = np.array([tick.action.item() for tick in done if tick.action is not None])
    assert values[-1] == 7.0  # all of the plan
    assert np.abs(np.diff(values, n=2)).max() <= 1 / 8 + 1e-5
    assert (np.diff(values) >= 0).all()
    assert scheduler.arrive(np.arange(3, 11, dtype=np.float32)[:, None]) == 5
    again = [7.0, *(scheduler.next().action.item() for _ in range(3))]  # type: ignore[union-attr]
    np.testing.assert_allclose(np.diff(again), [1 / 8, 2 / 8, 3 / 8], atol=1e-5)


def test_slow_scales_velocities_down_to_zero() -> None:
    scheduler = ChunkScheduler(Config(6, 4), ArraySpec((1,)), 8, slow_steps=4, slow_scales=True)
    scheduler.ask()
    scheduler.arrive(np.ones((8, 1), np.float32))
    for _ in range(3):
        scheduler.next()
    scheduler.ask()
    values = [scheduler.next().action.item() for _ in range(20)]  # type: ignore[union-attr]
    assert np.diff([1.0, *values]).min() >= -1 / 8 - 1e-6
    assert values[-1] == 0.0
    assert sum(values) == pytest.approx(5.0, abs=0.8)  # the way the rest of the plan would have gone, or less


def test_slow_changes_nothing_while_chunks_are_in_time() -> None:
    plain = simulate(ChunkScheduler(Config(4, 2), ACTION, 16), 16, [1, 2, 0], 60)
    slow = simulate(ChunkScheduler(Config(4, 2), ACTION, 16, slow_steps=3), 16, [1, 2, 0], 60)
    assert [(tick.chunk, tick.index, tick.kind) for tick in plain] == [
        (tick.chunk, tick.index, tick.kind) for tick in slow
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), st.integers(1, 6), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_slow_time_never_jumps_goes_back_or_leaves_the_plan(steps: int, slow: int, delays: list[int]) -> None:
    scheduler = ChunkScheduler(Config(steps, min(steps, 3)), ArraySpec((2,)), steps, slow_steps=slow)
    done = simulate(scheduler, steps, delays, 120)
    at = np.array([tick.action[1] for tick in done if tick.action is not None])
    speed = np.array([tick.speed for tick in done if tick.action is not None])
    assert at[0] == 0.0
    assert (np.diff(at) >= -1e-4).all()
    assert (np.diff(at) <= 1 + 1e-4).all()
    assert (np.diff(speed) <= 1 / (2 * slow) + 1e-6).all()  # never sped up abruptly
    assert len({tick.chunk for tick in done}) > 2 or max(delays) > 20  # and it goes on


def test_what_is_planned_is_what_will_run_and_frozen_actions_are_kept_exactly() -> None:
    scheduler = ChunkScheduler(Config(4, 2), ArraySpec((1,)), 8)
    assert scheduler.planned().shape == (0, 1)
    scheduler.ask()
    scheduler.arrive(np.arange(8, dtype=np.float32)[:, None])
    for _ in range(3):
        scheduler.next()
    planned = scheduler.planned()
    assert planned[:, 0].tolist() == [3, 4, 5, 6, 7]
    scheduler.ask()
    assert scheduler.next().action == 3
    assert scheduler.arrive(np.full((8, 1), 50.0, np.float32), planned[:3]) == 1  # a tick earlier than expected
    values = [scheduler.next().action.item() for _ in range(3)]  # type: ignore[union-attr]
    assert values == [4, 5, 50]


def test_ensembling_weighs_the_oldest_chunk_most() -> None:
    scheduler = ChunkScheduler(Config(replan_steps=1, ensemble_decay=1.0), ArraySpec((1,)), 3)
    values = []
    for number in range(4):
        scheduler.ask()
        scheduler.arrive(np.full((3, 1), float(number), np.float32))
        action = scheduler.next().action
        assert action is not None
        values.append(action.item())
    w = np.exp(-np.arange(3.0))
    assert values == pytest.approx(
        [0.0, w[1] / w[:2].sum(), (w[1] + 2 * w[2]) / w.sum(), (1 + 2 * w[1] + 3 * w[2]) / w.sum()]
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6), st.floats(-2, 2))
def test_ensembles_stay_within_their_members(values: list[float], decay: float) -> None:
    scheduler = ChunkScheduler(Config(replan_steps=1, ensemble_decay=decay), ArraySpec((1,)), 8)
    for value in values:
        scheduler.ask()
        scheduler.arrive(np.full((8, 1), value, np.float32))
        action = scheduler.next().action
        assert action is not None
    assert min(values) - 1e-5 <= action.item() <= max(values) + 1e-5


def test_reset_and_drop_forget() -> None:
    scheduler = ChunkScheduler(Config(), ACTION, 2)
    scheduler.ask()
    assert not scheduler.wants_chunk()
    scheduler.drop()
    assert scheduler.wants_chunk()
    scheduler.ask()
    scheduler.arrive(chunk_at(0, 0, 2))
    scheduler.next()
    scheduler.reset()
    assert scheduler.next().kind == "wait"
    assert scheduler.plan_tick == 0
    scheduler.reset(np.ones(2, np.float32))
    tick = scheduler.next()
    assert tick.kind == "hold"
    np.testing.assert_array_equal(tick.action, [1, 1])


def test_actions_handed_out_are_copies() -> None:
    scheduler = ChunkScheduler(Config(), ACTION, 1)
    scheduler.ask()
    scheduler.arrive(np.ones((1, 2), np.float32))
    action = scheduler.next().action
    assert action is not None
    action[:] = 99
    np.testing.assert_array_equal(scheduler.next().action, [1, 1])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"replan_steps": -1}, "negative"),
        ({"replan_steps": 2, "prefetch_steps": 3}, "must not exceed replan_steps"),
        ({"ensemble_decay": 0.1, "blend_steps": 2}, "set one of them"),
        ({"ensemble_decay": float("nan")}, "finite"),
        ({"replan_steps": 5}, "exceed the chunk, which has 4"),
        ({"prefetch_steps": 5}, "exceed the chunk, which has 4"),
    ],
)
def test_wrong_configurations_are_refused(fields: dict[str, float], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ChunkScheduler(Config(**fields), ACTION, 4)  # type: ignore[arg-type]


def test_rotations_are_not_averaged() -> None:
    action = ArraySpec((5,), names=("x", "tool_qw", "tool_qx", "tool_qy", "tool_qz"))
    ChunkScheduler(Config(), action, 4)
    for config, slow in ((Config(ensemble_decay=0.01), 0), (Config(blend_steps=2), 0), (Config(2), 3)):
        with pytest.raises(ConfigError, match="wrong for rotations such as tool_qw"):
            ChunkScheduler(config, action, 4, slow_steps=slow)


def test_slowing_down_needs_actions_that_are_left() -> None:
    for config in (Config(), Config(replan_steps=2, run_tail=False)):
        with pytest.raises(ConfigError, match="slowing down needs planned actions that are left"):
            ChunkScheduler(config, ACTION, 4, slow_steps=2)


def test_chunks_out_of_turn_or_shape_are_refused() -> None:
    scheduler = ChunkScheduler(Config(), ACTION, 4)
    with pytest.raises(ProtocolError, match="not asked for"):
        scheduler.arrive(chunk_at(0, 0, 4))
    scheduler.ask()
    with pytest.raises(ProtocolError, match="one at a time"):
        scheduler.ask()
    with pytest.raises(ProtocolError, match=r"shape \(3, 2\), expected \(4, 2\)"):
        scheduler.arrive(chunk_at(0, 0, 3))
