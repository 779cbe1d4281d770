import pytest

from burnish.cli import doctor
from burnish.cli.doctor import examine
from tests.unit.cli.conftest import Command


def test_every_finding_says_what_to_do() -> None:
    findings = {item.name: item for item in examine(rendering=False)}
    assert {"python", "threads", "versions", "gpu", "disk"} <= set(findings)
    assert findings["python"].status == "ok"
    for name, item in findings.items():
        if item.status == "missing" and name.startswith("extra: "):
            assert f"pip install 'burnish[{name.removeprefix('extra: ')}]'" in item.text


def test_brackets_are_printed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_packages", lambda extra: [f"{extra}-package"])
    _, printed = command("doctor", "--rendering", "False")
    assert "lacks onnx-package: pip install 'burnish[onnx]'" in printed


def test_an_extra_is_there_when_all_its_packages_are() -> None:
    assert doctor.missing_packages("onnx") == []
    assert doctor.missing_packages("no such extra") == []


def test_spinning_threads_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    threads = next(item for item in examine(rendering=False) if item.name == "threads")
    assert threads.status == "problem"
    assert "OMP_WAIT_POLICY=PASSIVE" in threads.text


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def broken() -> list[doctor.Finding]:
        raise RuntimeError("no such disk")

    monkeypatch.setattr(doctor, "_disk", broken)
    status, printed = command("doctor", "--rendering", "False")
    assert status == 1
    assert "RuntimeError: no such disk" in printed
