import resource
import subprocess
import sys

import pytest

from burnish import __version__, registry
from burnish.cli.main import COMMANDS
from tests.unit.cli.conftest import Command

LOOK = "import sys; from burnish.cli.main import main; main({arguments!r}); sys.exit('torch' in sys.modules)"


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"], ["list"], ["list", "policy"]])
def test_help_and_list_reach_no_torch(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(arguments=arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_takes_less_than_a_second() -> None:
    def processor_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = processor_seconds()
    subprocess.run([sys.executable, "-m", "burnish", "--help"], capture_output=True, check=True)
    assert processor_seconds() - before < 1.0


def test_help_names_every_command(command: Command) -> None:
    status, printed = command("--help")
    assert status == 0
    for name in COMMANDS:
        assert name in printed


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"burnish {__version__}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, command: Command) -> None:
    status, printed = command(name, "--help")
    assert status == 0
    assert f"burnish {name}" in printed or name in ("list", "doctor", "demo")
    assert len(printed) > 100


def test_list_names_every_component(command: Command) -> None:
    status, printed = command("list")
    assert status == 0
    for kind in registry.FOLDERS:
        for name in registry.names(kind):
            assert name in printed


def test_help_of_a_recipe_shows_what_was_chosen_only(command: Command) -> None:
    _, printed = command("train", "ppo", "--env", "contact/contour", "--help")
    assert "--env.force-limit" in printed
    assert "--env.goal-radius" not in printed
    _, printed = command("train", "ppo", "--help")
    assert "--env.goal-radius" in printed
    assert "--env.force-limit" not in printed


def test_interruption_is_no_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("burnish.cli.listing.run", interrupt)
    status, printed = command("list")
    assert status == 130
    assert "what was finished is on disk" in printed
