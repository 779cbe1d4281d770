"""One small run that the tests of the command line look at, copy and damage."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burnish.cli.main import main

type Command = Callable[..., tuple[int, str]]
"""Arguments to (exit status, all that was printed, on one line)."""

SMALL = ("--numbers.iterations", "1", "--numbers.rollout_chunks", "4", "--num_envs", "2", "--policy.hidden", "8")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "ppo", "--out", str(folder), *SMALL]) == 0
    return folder


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str]:
        capfd.readouterr()
        try:
            status = main([str(item) for item in arguments])
        except SystemExit as end:  # the option parser ends the process itself
            status = int(end.code or 0)
        printed = capfd.readouterr()
        return status, " ".join(f"{printed.out} {printed.err}".replace("│", " ").split())

    yield call
    logging.shutdown()
