from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.deploy.cameras import CameraWatch, Config, same_picture
from burnish.deploy.robot import Sensed

A, B = "observation.images.a", "observation.images.b"
POLICY = PolicySpec("sees", {A: ArraySpec((4, 4, 3), "uint8"), B: ArraySpec((4, 4, 3), "uint8")}, ArraySpec((1,)), 1)


def watch(*, simulated: bool = False, **fields: Any) -> CameraWatch:
    return CameraWatch(Config(**fields), POLICY, 0.1, default_age_s=0.2, simulated=simulated)


def seen(number: int, times: Any = None) -> Sensed:
    live = np.full((1, 4, 4, 3), number, np.uint8)
    return Sensed({A: live, B: np.zeros((1, 4, 4, 3), np.uint8)}, 0.0, times or {})


def problems(cameras: CameraWatch, positions: list[float]) -> list[str]:
    return [cameras.problem(seen(n), 0.0, np.array([position])) for n, position in enumerate(positions)]


def test_pictures_are_compared_to_the_last_bit() -> None:
    one = np.zeros((4, 4, 3), np.uint8)
    other = one.copy()
    assert same_picture(one, other)
    other[3, 3, 2] = 1
    assert not same_picture(one, other)
    assert not same_picture(one, one[:3])


def test_one_frozen_camera_of_two_is_named_once_the_robot_moved_for_long_enough() -> None:
    found = problems(watch(max_frozen_s=0.3, min_motion=0.1), [0, 0.05, 0.06, 0.07, 0.2, 0.3])
    assert found[:4] == [""] * 4  # not moved far enough
    assert found[4] == f"camera '{B}' has shown the same picture for 0.4 s, while the robot went 0.2"


def test_a_picture_that_changes_starts_again() -> None:
    cameras = watch(max_frozen_s=0.3, min_motion=0.1)
    moving = [float(n) for n in range(3)]
    assert problems(cameras, moving) == [""] * 3
    changed = Sensed({A: np.ones((1, 4, 4, 3), np.uint8), B: np.ones((1, 4, 4, 3), np.uint8)}, 0.0)
    assert cameras.problem(changed, 0.0, np.array([3.0])) == ""
    cameras.reset()
    assert problems(cameras, moving) == [""] * 3


def test_a_buffer_that_a_driver_writes_over_is_not_mistaken_for_a_frozen_one() -> None:
    cameras, buffer = watch(max_frozen_s=0.2), np.zeros((1, 4, 4, 3), np.uint8)
    for n in range(8):
        buffer[:] = n
        assert cameras.problem(Sensed({A: buffer, B: buffer}, 0.0), 0.0, np.array([float(n)])) == ""


@pytest.mark.parametrize(("simulated", "found"), [(True, False), (False, True)])
def test_by_default_real_cameras_are_watched_and_simulated_ones_are_not(simulated: bool, found: bool) -> None:
    assert any(problems(watch(simulated=simulated), [float(n) for n in range(8)])) is found
    assert not any(problems(watch(max_frozen_s=0.0), [float(n) for n in range(8)]))


def test_old_pictures_are_named() -> None:
    assert watch().problem(seen(0, {A: 0.9, B: 0.7}), 1.0, np.zeros(1)) == (
        f"the picture '{B}' is 0.3 s old; the limit is 0.2 s"
    )
    assert watch(max_age_s=0.5).problem(seen(0, {B: 0.7}), 1.0, np.zeros(1)) == ""


def test_wrong_numbers_are_refused() -> None:
    for fields in ({"max_age_s": -1.0}, {"max_frozen_s": -1.0}, {"min_motion": 0.0}):
        with pytest.raises(ConfigError, match="cameras"):
            Config(**fields)
