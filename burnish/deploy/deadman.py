"""A dead-man's switch: somebody must confirm again and again that the robot may move.

Anything with ``confirmed`` will do. Two are here that other programs can press: a file whose time stamp changes
(``while read -rsn1; do touch deadman; done`` makes a held key one), and a UDP port of this machine.
"""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.core.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """A dead-man's switch from the command line."""

    timeout_s: float = 0.5
    """Without a confirmation for so long the robot is held, and after ``max_hold_s`` more the run stops [s]."""
    file: str = ""
    """A file that somebody touches; "" for none."""
    port: int = 0
    """A UDP port of this machine that somebody sends to, anything; 0 for none."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.timeout_s <= 0 or not 0 <= self.port < 1 << 16 or (self.file and self.port):
            raise ConfigError(
                f"deadman: timeout_s must be positive and port a port; name a file or a port, not both; found {self}."
            )

    def build(self) -> "Deadman | None":
        """Return the switch; None where none is named.

        Raises:
            ConfigError: If the port is taken.
        """
        if self.file:
            return FileDeadman(Path(self.file))
        return PortDeadman(self.port) if self.port else None


class Deadman(Protocol):
    """Says whether somebody is there."""

    def confirmed(self) -> bool:
        """Return whether somebody confirmed since the last call; called once per control tick, must not wait."""
        ...

    def close(self) -> None:
        """Let go of what it listens to."""
        ...


class ButtonDeadman:
    """Pressed by this program, from any thread."""

    def __init__(self) -> None:
        """Start not pressed."""
        self._pressed = False

    def press(self) -> None:
        """Confirm."""
        self._pressed = True

    def confirmed(self) -> bool:
        """Return whether it was pressed since the last call."""
        pressed, self._pressed = self._pressed, False
        return pressed

    def close(self) -> None:
        """Do nothing."""


class FileDeadman:
    """A file whose modification time changes; which clock wrote it does not matter."""

    def __init__(self, path: Path) -> None:
        """Note the time stamp of now, which confirms nothing."""
        self._path = path
        self._stamp = self._read()

    def confirmed(self) -> bool:
        """Return whether the file was touched since the last call."""
        stamp = self._read()
        changed = stamp not in (self._stamp, 0)
        self._stamp = stamp
        return changed

    def close(self) -> None:
        """Do nothing."""

    def _read(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:  # not there (yet): nobody confirms
            return 0


class PortDeadman:
    """A UDP port on the loopback interface."""

    def __init__(self, port: int) -> None:
        """Listen.

        Args:
            port: 0 for any that is free.

        Raises:
            ConfigError: If the port is taken.
        """
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"deadman: UDP port {port} cannot be listened to: {error}.") from error
        self.port: int = self._socket.getsockname()[1]

    def confirmed(self) -> bool:
        """Return whether anything arrived since the last call."""
        arrived = False
        while True:
            try:
                self._socket.recvfrom(64)
            except OSError:
                return arrived
            arrived = True

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class DeadmanWatch:
    """How long ago somebody confirmed, on the runtime's clock."""

    def __init__(self, deadman: Deadman | None, timeout_s: float) -> None:
        """Start without a confirmation.

        Args:
            deadman: The switch; None where nobody has to confirm.
            timeout_s: How long one confirmation lasts [s].
        """
        self._deadman, self._timeout_s = deadman, timeout_s
        self._confirmed: float | None = None

    def allows(self, now: float) -> bool:
        """Return whether the robot may move at a time on the runtime's clock [s]; call it once per tick."""
        if self._deadman is None:
            return True
        if self._deadman.confirmed():
            self._confirmed = now
        return self._confirmed is not None and now - self._confirmed <= self._timeout_s + 1e-9

    def close(self) -> None:
        """Let go of the switch."""
        if self._deadman is not None:
            self._deadman.close()
