from pathlib import Path

import pytest

from burnish import registry
from burnish.cli.check import CHECKED
from tests.unit.cli.conftest import Command

BROKEN = '''
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Config:
    """A sampler that hands out one Start too few."""

    {field}

    def build(self, env_spec, *, generator):
        from burnish.rl.samplers.uniform import Config as Uniform

        sampler = Uniform().build(env_spec, generator=generator)
        draw = sampler.next
        sampler.next = lambda count: {next}
        return sampler
'''


@pytest.mark.parametrize(
    ("kind", "name"), [("sampler", "uniform"), ("controller", "early_stop"), ("objective", "value"), ("labeler", "gae")]
)
def test_a_good_component_passes(kind: str, name: str, command: Command) -> None:
    status, printed = command("check", kind, name)
    assert status == 0
    assert "checks passed" in printed


def test_a_broken_component_of_ones_own_fails(command: Command, tmp_path: Path) -> None:
    package = tmp_path / "my_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "short.py").write_text(BROKEN.format(field="size: int = 1", next="draw(count)[1:]"))
    (package / "raising.py").write_text(BROKEN.format(field="size: int = 1", next="1 / 0"))
    status, printed = command("check", "sampler", "my_parts.short")
    assert status == 1
    assert "fails the check 'starts': next(1) returned 0 Starts" in printed
    status, printed = command("check", "sampler", "my_parts.raising")
    assert status == 1
    assert "ZeroDivisionError" in printed


def test_options_of_the_component(command: Command) -> None:
    status, printed = command("check", "sampler", "fixed", "--component.count", "0")
    assert status == 2
    assert "count=0" in printed


def test_every_kind_with_a_contract_is_offered() -> None:
    assert set(CHECKED) == set(registry.FOLDERS) - {"world_model", "recipe"}
