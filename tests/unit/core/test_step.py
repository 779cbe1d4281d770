import re

import numpy as np
import pytest

from burnish.core.contracts import select
from burnish.core.errors import ConfigError
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import TRAINING_SEED_START, Start, Step, evaluation_starts

SPEC = EnvSpec(
    id="toy",
    observation={},
    action=ArraySpec((1,)),
    control_dt=0.1,
    max_episode_steps=5,
    tasks=("a", "b", "c"),
    splits={"train": ("a", "b"), "shift": ("c",)},
    num_inits=2,
)


def test_tasks_and_inits_take_turns_and_seeds_count_up() -> None:
    assert evaluation_starts(SPEC, 5, split="train", seed=7) == [
        Start("a", 0, 7),
        Start("b", 0, 8),
        Start("a", 1, 9),
        Start("b", 1, 10),
        Start("a", 0, 11),
    ]


def test_the_same_arguments_give_the_same_list_and_tasks_replace_a_split() -> None:
    assert evaluation_starts(SPEC, 50) == evaluation_starts(SPEC, 50)
    assert {start.task for start in evaluation_starts(SPEC, 9)} == {"a", "b", "c"}
    assert {start.task for start in evaluation_starts(SPEC, 9, split="train", tasks=("c",))} == {"c"}


def test_evaluation_never_shares_a_seed_with_training() -> None:
    starts = evaluation_starts(SPEC, 10, seed=TRAINING_SEED_START - 10)
    assert max(start.seed for start in starts) < TRAINING_SEED_START


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"split": "trains"},
            "Environment 'toy' has no split 'trains'. Did you mean 'train'? Available: shift, train.",
        ),
        ({"tasks": ("d",)}, "Environment 'toy' has no task 'd'. Available: a, b, c."),
        ({"episodes": 0}, "found episodes=0, seed=0"),
        ({"seed": -1}, "found episodes=3, seed=-1"),
        ({"seed": TRAINING_SEED_START - 2}, f"seeds within [0, {TRAINING_SEED_START})"),
    ],
)
def test_bad_evaluations(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        evaluation_starts(SPEC, **{"episodes": 3, **arguments})  # type: ignore[arg-type]


def test_done_is_terminated_or_truncated() -> None:
    step = Step(
        observation={},
        reward=np.zeros((3, 1), np.float32),
        executed=np.ones(3, np.int64),
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, False]),
    )
    assert step.done.tolist() == [True, True, False]


def test_select_keeps_the_order_asked_for() -> None:
    assert list(select({"x": 1, "y": 2, "z": 3}, ("z", "x"))) == ["z", "x"]


def test_starts_are_values() -> None:
    assert Start("a", 0, 1) == Start("a", 0, 1)
    assert sorted([Start("b", 0, 0), Start("a", 1, 0), Start("a", 0, 5)])[0] == Start("a", 0, 5)
