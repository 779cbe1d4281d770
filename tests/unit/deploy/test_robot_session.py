import threading

import pytest

from burnish.core.seeding import stream
from burnish.core.spec import Observation
from burnish.deploy.lerobot_wire import Seen
from burnish.deploy.observations import ObservationReader
from burnish.deploy.robot_session import RobotSession
from tests.unit.deploy.affine import make_spec


@pytest.fixture
def session() -> RobotSession:
    return RobotSession(ObservationReader(make_spec()), stream(0))


def seen(timestep: int, *, must_go: bool = False) -> tuple[Seen, Observation]:
    return Seen(0.0, timestep, must_go, {}), {"timestep": timestep}


def test_the_newest_observation_is_answered(session: RobotSession) -> None:
    assert session.offer(*seen(1))
    assert session.offer(*seen(3))
    assert not session.offer(*seen(2))
    taken = session.take(0.0)
    assert taken is not None
    assert taken[0].timestep == 3
    assert taken[1] == {"timestep": 3}


def test_a_timestep_is_answered_once_unless_the_robot_has_nothing_left(session: RobotSession) -> None:
    assert session.offer(*seen(3))
    assert session.take(0.0)
    session.answered(3)
    assert not session.offer(*seen(3))
    assert session.offer(*seen(3, must_go=True))
    assert session.offer(*seen(4))


def test_a_robot_that_waited_in_vain_is_answered_again(session: RobotSession) -> None:
    session.offer(*seen(3))
    session.take(0.0)
    session.answered(3)
    assert not session.offer(*seen(3))
    assert session.take(0.0) is None
    assert session.offer(*seen(3))


def test_an_observation_wakes_who_waits(session: RobotSession) -> None:
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(session.take(10.0)))
    waiting.start()
    session.offer(*seen(0))
    waiting.join(10)
    assert taken[0][0].timestep == 0


def test_the_end_wakes_who_waits_and_answers_nothing(session: RobotSession) -> None:
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(session.take(10.0)))
    waiting.start()
    session.end()
    waiting.join(10)
    assert taken == [None]
    session.offer(*seen(0))
    assert session.take(0.0) is None


def test_a_robot_is_gone_when_its_connection_broke_or_it_is_quiet(session: RobotSession) -> None:
    assert not session.is_gone(10.0)
    assert session.is_gone(-1.0)
    session.begin_call()
    assert not session.is_gone(-1.0)
    session.end_call(broken=True)
    assert session.is_gone(10.0)
    session.begin_call()
    assert not session.is_gone(10.0)
