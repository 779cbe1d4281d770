"""The README's command for an environment of somebody else runs as it stands there, only shorter."""

import re
import shlex
from pathlib import Path

import pytest

from burnish.cli.main import main

README = Path(__file__).parents[2] / "README.md"
SHORT = ("--num-envs", "2", "--numbers.iterations", "1", "--numbers.rollout-chunks", "4")


def test_the_gymnasium_command_of_the_readme_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^uv run burnish (train ppo --env gymnasium .*)$", README.read_text(), re.MULTILINE)
    assert found, "README.md no longer shows how to train on a Gymnasium environment"
    assert main([*shlex.split(found.group(1)), *SHORT, "--out", str(tmp_path / "run")]) == 0
    assert "Ended after 1 iterations" in capsys.readouterr().out
