from dataclasses import dataclass, field

import pytest

from burnish.cli.options import choose_components, parse, take, with_components
from burnish.core.errors import ConfigError
from burnish.envs import point_mass


@dataclass(frozen=True)
class Inner:
    """Inside."""

    loud: bool = False
    """Whether it is loud."""
    size: int = 3
    """How large."""


@dataclass(frozen=True)
class Outer:
    """Outside."""

    quiet_mode: bool = False
    """Whether it is quiet."""
    names: tuple[str, ...] = ()
    """Names."""
    inner: Inner = field(default_factory=Inner)
    """What is inside."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Outer()),
        (["--quiet_mode"], Outer(quiet_mode=True)),
        (["--quiet-mode", "--inner.loud"], Outer(quiet_mode=True, inner=Inner(loud=True))),
        (["--quiet-mode", "False", "--inner.size", "5"], Outer(inner=Inner(size=5))),
        (["--inner.loud", "--names", "a", "b"], Outer(names=("a", "b"), inner=Inner(loud=True))),
        (["--names", "a", "--inner.loud", "True"], Outer(names=("a",), inner=Inner(loud=True))),
    ],
)
def test_a_switch_needs_no_value(arguments: list[str], expected: Outer) -> None:
    assert parse(Outer, arguments, prog="test") == expected


@pytest.mark.parametrize(
    ("arguments", "value", "rest"),
    [
        (["--env", "a", "x"], "a", ["x"]),
        (["x", "--env=a=b", "--y", "1"], "a=b", ["x", "--y", "1"]),
        (["--env.size", "3"], None, ["--env.size", "3"]),
        ([], None, []),
    ],
)
def test_take(arguments: list[str], value: str | None, rest: list[str]) -> None:
    assert take(arguments, "env") == (value, rest)


def test_chosen_component_keeps_the_default_that_a_command_prepared() -> None:
    prepared = point_mass.Config(goal_radius=0.3)
    chosen, rest = choose_components(["--env", "point_mass", "--env.goal_noise", "0.1"], {"env": prepared})
    assert chosen == {"env": prepared}
    parsed = parse(with_components(point_mass_command(), chosen), rest, prog="test")
    assert parsed.env == point_mass.Config(goal_radius=0.3, goal_noise=0.1)  # type: ignore[attr-defined]


def point_mass_command() -> type:
    @dataclass(frozen=True)
    class Command:
        """A command."""

        env: object = None
        """The environment."""

    return Command


def test_required_component() -> None:
    with pytest.raises(ConfigError, match="Say which env to use"):
        choose_components([], {"env": None}, required=("env",))


def test_component_that_a_command_does_not_have() -> None:
    with pytest.raises(ConfigError, match="no component 'teacher'"):
        with_components(Outer, {"teacher": Inner()})
