import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from burnish.core.config import from_plain, to_plain
from burnish.core.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    stiffness: float = 800.0
    axes: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Outer:
    steps: int = 8
    rate: float = 1e-3
    mode: Literal["fast", "exact"] = "fast"
    name: str = ""
    verbose: bool = False
    widths: tuple[int, ...] = (64, 64)
    inner: Inner = field(default_factory=Inner)
    limit: float | None = None
    either: int | str = 0
    rates: dict[str, float] = field(default_factory=dict)
    parts: tuple[Inner, ...] = ()
    free: Any = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, found {self.steps}.")


@dataclass(frozen=True)
class Needed:
    path: str


FULL = Outer(
    steps=3,
    rate=0.5,
    mode="exact",
    name="x",
    verbose=True,
    widths=(1, 2, 3),
    inner=Inner(1.0, (2, 3)),
    limit=4.0,
    either="five",
    rates={"actor": 1e-4},
    parts=(Inner(), Inner(2.0)),
    free={"a": [1]},
)


@pytest.mark.parametrize("config", [Outer(), FULL])
def test_configurations_go_through_json(config: Outer) -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(config)))) == config


def test_absent_fields_keep_their_defaults_and_whole_numbers_become_floats() -> None:
    config = from_plain(Outer, {"rate": 2, "limit": 3, "inner": {"stiffness": 5}})
    assert config == Outer(rate=2.0, limit=3.0, inner=Inner(5.0))
    assert isinstance(config.rate, float)
    assert isinstance(config.inner.stiffness, float)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"step": 3}, "Outer: unknown field 'step'. Did you mean 'steps'? Available: either, free, inner"),
        ({"inner": {"stiffnes_": 1}}, "Outer.inner: unknown field 'stiffnes_'. Did you mean 'stiffness'"),
        ({"steps": "3"}, "Outer.steps: expected int, found str '3'"),
        ({"steps": 3.0}, "Outer.steps: expected int, found float 3.0"),
        ({"steps": True}, "Outer.steps: expected int, found bool True"),
        ({"rate": True}, "Outer.rate: expected float, found bool True"),
        ({"rate": "fast"}, "Outer.rate: expected float, found str 'fast'"),
        ({"verbose": 1}, "Outer.verbose: expected bool, found int 1"),
        ({"name": None}, "Outer.name: expected str, found NoneType None"),
        ({"mode": "exakt"}, "Outer.mode: found 'exakt'. Did you mean 'exact'? Available: exact, fast."),
        ({"widths": 64}, "Outer.widths: expected a list, found 64"),
        ({"widths": "64"}, "Outer.widths: expected a list, found '64'"),
        ({"widths": [64, "x"]}, "Outer.widths[1]: expected int, found str 'x'"),
        ({"inner": {"axes": [1]}}, "Outer.inner.axes: expected 2 entries, found 1"),
        ({"inner": 5}, "Outer.inner: expected a JSON object, found int"),
        ({"limit": "none"}, "Outer.limit: expected float, found str 'none'"),
        ({"either": 1.5}, "Outer.either: expected str, found float 1.5"),
        ({"rates": [1]}, "Outer.rates: expected a JSON object, found [1]"),
        ({"rates": {"actor": "x"}}, "Outer.rates.actor: expected float, found str 'x'"),
        ({"parts": [{}, {"axes": 3}]}, "Outer.parts[1].axes: expected a list, found 3"),
        ({"steps": 0}, "steps must be at least 1, found 0"),
    ],
)
def test_bad_values_are_named(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_plain(Outer, value)


def test_the_path_of_a_file_is_part_of_the_message() -> None:
    with pytest.raises(ConfigError, match=r"^run/config.json: env: unknown field 'x'"):
        from_plain(Inner, {"x": 1}, "run/config.json: env")


def test_missing_fields_and_other_json() -> None:
    with pytest.raises(ConfigError, match=r"Needed: .*missing 1 required positional argument: 'path'"):
        from_plain(Needed, {})
    with pytest.raises(ConfigError, match="Needed: expected a JSON object, found list"):
        from_plain(Needed, [])  # type: ignore[arg-type]


def test_only_plain_values_can_be_written() -> None:
    with pytest.raises(ConfigError, match="holds plain values only, found object"):
        to_plain({"a": object()})
