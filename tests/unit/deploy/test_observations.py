from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.deploy.observations import ObservationReader, default_aliases
from tests.unit.deploy.affine import STATE, WRIST, make_observation, make_spec


def test_a_message_becomes_a_batch_of_one_with_the_specs_dtypes() -> None:
    observation, warnings = ObservationReader(make_spec()).read(make_observation(**{STATE: np.zeros(3)}))
    assert observation[STATE].shape == (1, 3)
    assert observation[STATE].dtype == np.float32
    assert observation[WRIST].shape == (1, 8, 6, 3)
    assert observation["task"] == ["press"]
    assert not warnings


@pytest.mark.parametrize("state", ["observation.state", "observation/state", "state"])
@pytest.mark.parametrize("image", [WRIST, "observation/images/wrist", "images/wrist", "observation/wrist"])
@pytest.mark.parametrize("task", ["task", "prompt"])
def test_openpi_names_are_aliases(state: str, image: str, task: str) -> None:
    message = {state: np.ones(3), image: np.zeros((8, 6, 3), np.uint8), task: "press"}
    observation, warnings = ObservationReader(make_spec()).read(message)
    assert sorted(observation) == sorted([STATE, WRIST, "task"])
    assert not warnings


def test_bytes_keys_and_own_aliases_work() -> None:
    reader = ObservationReader(make_spec(image=False), aliases={"joints": STATE})
    observation, _ = reader.read({b"joints": np.ones(3), b"prompt": "press"})
    np.testing.assert_array_equal(observation[STATE], [[1, 1, 1]])


def test_an_ambiguous_default_alias_is_left_out() -> None:
    spec = PolicySpec("p", {"observation.state": ArraySpec((1,)), "state": ArraySpec((1,))}, ArraySpec((1,)), 1)
    assert "state" not in default_aliases(spec)
    images = {"observation.images.state": ArraySpec((4, 4, 3), "uint8"), "observation.state": ArraySpec((1,))}
    assert "observation/state" not in default_aliases(PolicySpec("p", images, ArraySpec((1,)), 1))


@pytest.mark.parametrize("aliases", [{"joints": "nothing"}, {WRIST: STATE}])
def test_wrong_aliases_are_refused(aliases: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must lead from a new name"):
        ObservationReader(make_spec(), aliases=aliases)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ([1, 2], "map of keys to arrays, found list"),
        ({}, "lacks observation.state, observation.images.wrist, task.*Received: nothing"),
        ({"prompt": "x", "pose": np.zeros(7)}, r"Expected: observation.state float32\[3\].*pose float64\[7\]"),
        (
            make_observation(**{STATE: np.zeros(4)}),
            r"'observation.state': expected float32\[3\], received float64\[4\]",
        ),
        (make_observation(**{STATE: np.zeros((1, 3))}), "without a batch axis"),
        (make_observation(**{STATE: [0.0, 0.0, 0.0]}), "expected a numpy array .* received list"),
        (make_observation(**{STATE: np.zeros(3, int)}), r"expected float32\[3\], received int64\[3\]"),
        (make_observation(**{STATE: np.array([0, np.nan, 0])}), r"entry \[1\] is nan"),
        (make_observation(**{STATE: np.array([0, 0, 1e300])}), "entry.*inf"),
        (make_observation(**{WRIST: np.zeros((3, 8, 6), np.uint8)}), "channel, height, width"),
        (make_observation(**{WRIST: np.zeros((9, 9, 3), np.uint8)}), "Resize the image to 8 x 6"),
        (make_observation(**{WRIST: np.zeros((8, 6, 3), np.float32)}), "uint8 in 0..255"),
        (make_observation(task=3), "'task' must be text, found int"),
        (make_observation(prompt="again"), "'task' twice"),
    ],
)
def test_wrong_messages_say_expected_and_received(message: Any, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        ObservationReader(make_spec()).read(message)


def test_values_outside_the_training_range_are_warned_about_once() -> None:
    statistics = {STATE: {"min": [0.0, 0.0, 0.0], "max": [1.0, 1.0, 1.0]}}
    reader = ObservationReader(make_spec(), statistics=statistics)
    assert reader.read(make_observation(**{STATE: np.array([0.0, 1.04, 0.5])}))[1] == []
    warnings = reader.read(make_observation(**{STATE: np.array([0.0, 57.3, 0.5])}))[1]
    assert len(warnings) == 1
    assert "observation.state[1] is 57.3, outside the training range [-0.25, 1.25] (1 of 3" in warnings[0]
    assert reader.read(make_observation(**{STATE: np.array([0.0, 57.3, 0.5])}))[1] == []


def test_statistics_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="have 2 entries"):
        ObservationReader(make_spec(), statistics={STATE: {"min": [0.0, 0.0], "max": [1.0, 1.0]}})


def test_keys_that_are_not_read_are_named_once() -> None:
    reader = ObservationReader(make_spec())
    assert reader.read(make_observation(gripper=np.zeros(1)))[1] == ["The policy does not read gripper."]
    assert reader.read(make_observation(gripper=np.zeros(1)))[1] == []
