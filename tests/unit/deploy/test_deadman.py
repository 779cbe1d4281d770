import os
import socket
from pathlib import Path

import pytest

from burnish.core.errors import ConfigError
from burnish.deploy.deadman import ButtonDeadman, Config, DeadmanWatch, FileDeadman, PortDeadman


def test_a_button_confirms_once_per_press() -> None:
    button = ButtonDeadman()
    assert not button.confirmed()
    button.press()
    assert [button.confirmed(), button.confirmed()] == [True, False]


def test_a_file_confirms_when_it_is_touched_and_not_because_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "deadman"
    path.touch()
    switch = FileDeadman(path)
    assert not switch.confirmed()
    os.utime(path, ns=(1, 1))  # even by a clock that is wrong
    assert [switch.confirmed(), switch.confirmed()] == [True, False]
    path.unlink()
    assert not switch.confirmed()
    path.touch()
    assert switch.confirmed()


def test_a_port_confirms_for_all_that_arrived() -> None:
    switch = PortDeadman(0)
    try:
        assert not switch.confirmed()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(3):
                sender.sendto(b"here", ("127.0.0.1", switch.port))
        assert [switch.confirmed(), switch.confirmed()] == [True, False]
        with pytest.raises(ConfigError, match=f"UDP port {switch.port} cannot be listened to"):
            PortDeadman(switch.port)
    finally:
        switch.close()


def test_a_confirmation_lasts_for_the_timeout() -> None:
    button = ButtonDeadman()
    watch = DeadmanWatch(button, 0.5)
    assert not watch.allows(0.0)
    button.press()
    assert watch.allows(1.0)
    assert watch.allows(1.5)
    assert not watch.allows(1.6)
    assert DeadmanWatch(None, 0.5).allows(100.0)


def test_a_configuration_builds_what_it_names(tmp_path: Path) -> None:
    assert Config().build() is None
    assert isinstance(Config(file=str(tmp_path / "deadman")).build(), FileDeadman)
    for fields in ({"timeout_s": 0.0}, {"port": 70000}, {"file": "a", "port": 1}):
        with pytest.raises(ConfigError, match="deadman"):
            Config(**fields)  # type: ignore[arg-type]
