"""Checkpoints and run folders that a disk, an editor or another version has spoiled."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burnish.rl.checkpoint import resolve
from tests.unit.cli.conftest import Command


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads(file.read_text())
    change(plain)
    file.write_text(json.dumps(plain))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


CHECKPOINT: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "no weights": (lambda at: (at / "policy/model.safetensors").unlink(), ["Cannot read the mlp policy"]),
    "half the weights": (lambda at: cut(at / "policy/model.safetensors"), ["Cannot read the mlp policy"]),
    "no policy": (lambda at: shutil.rmtree(at / "policy"), ["has no folder 'policy'", "burnish.json"]),
    "no description": (lambda at: (at / "burnish.json").unlink(), ["neither a checkpoint"]),
    "half a description": (lambda at: cut(at / "burnish.json"), ["burnish.json is damaged"]),
    "a list": (lambda at: (at / "burnish.json").write_text("[]"), ["expected a JSON object, found list"]),
    "newer format": (lambda at: edit(at / "burnish.json", lambda it: it.update(format_version=99)), ["format 99"]),
    "no env": (lambda at: edit(at / "burnish.json", lambda it: it.pop("env")), ["which env it belongs to", "None"]),
    "no replan": (lambda at: edit(at / "burnish.json", lambda it: it.pop("replan_steps")), ["'replan_steps'"]),
    "no spec": (lambda at: edit(at / "burnish.json", lambda it: it.pop("policy_spec")), ["holds no policy_spec"]),
    "another meaning": (
        lambda at: edit(at / "burnish.json", lambda it: it["policy_spec"]["action"].update(names=["wx", "wy"])),
        ["'action' holding wx, wy", "another meaning"],
    ),
    "unknown policy": (
        lambda at: edit(at / "burnish.json", lambda it: it["policy"].update(id="flow9")),
        ["no policy 'flow9'"],
    ),
    "unknown field": (
        lambda at: edit(at / "burnish.json", lambda it: it["env"]["config"].update(goal_radios=1.0)),
        ["unknown field 'goal_radios'", "Did you mean 'goal_radius'?"],
    ),
    "wrong type": (
        lambda at: edit(at / "burnish.json", lambda it: it["env"]["config"].update(goal_radius="wide")),
        ["goal_radius: expected float, found str 'wide'"],
    ),
    "other normalisation": (
        lambda at: edit(at / "burnish.json", lambda it: it.update(normalisation="0123456789abcdef")),
        ["trained with normalisation 0123456789abcdef"],
    ),
    "other network": (
        lambda at: edit(at / "burnish.json", lambda it: it["policy"]["config"].update(hidden=[9])),
        ["was built with", "hidden=(9,)"],
    ),
    "other kind of policy": (
        lambda at: edit(at / "policy/config.json", lambda it: it.update(policy="act")),
        ["a policy of kind 'act', not 'mlp'"],
    ),
}


@pytest.mark.parametrize("name", CHECKPOINT)
def test_damaged_checkpoint_is_refused(name: str, run_folder: Path, command: Command, tmp_path: Path) -> None:
    damage, fragments = CHECKPOINT[name]
    copy = tmp_path / "copy"
    shutil.copytree(resolve(run_folder), copy)
    damage(copy)
    status, printed = command("eval", copy, "--episodes", "2")
    assert status == 2
    for fragment in fragments:
        assert fragment in printed


RUN: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "half a configuration": (lambda at: cut(at / "config.json"), ["config.json is damaged"]),
    "no recipe": (
        lambda at: edit(at / "config.json", lambda it: it.pop("recipe")),
        ["not a run configuration", "'recipe' is None"],
    ),
    "unknown recipe": (
        lambda at: edit(at / "config.json", lambda it: it.update(recipe="pppo")),
        ["no recipe 'pppo'", "Did you mean 'ppo'?"],
    ),
    "unknown number": (
        lambda at: edit(at / "config.json", lambda it: it["config"]["numbers"].update(iterationz=3)),
        ["unknown field 'iterationz'", "Did you mean 'iterations'?"],
    ),
    "other number": (
        lambda at: edit(at / "config.json", lambda it: it["config"]["numbers"].update(epochs=9)),
        ["cannot be resumed as another run", "numbers.epochs was 4 and is 9"],
    ),
    "other environment": (
        lambda at: edit(at / "config.json", lambda it: it["components"]["env"]["config"].update(goal_radius=0.2)),
        ["cannot be resumed as another run", "env_spec"],
    ),
    "no training state": (lambda at: shutil.rmtree(resolve(at) / "training"), ["training cannot be resumed from it"]),
    "half a training state": (
        lambda at: cut(resolve(at) / "training/state.safetensors"),
        ["state.safetensors cannot be read"],
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_damaged_run_is_not_resumed(name: str, run_folder: Path, command: Command, tmp_path: Path) -> None:
    damage, fragments = RUN[name]
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    damage(copy)
    status, printed = command("train", "--resume", copy)
    assert status == 2
    for fragment in fragments:
        assert fragment in printed


def test_damaged_demo_state_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"seconds": 3}')
    status, printed = command("demo", "--out", tmp_path)
    assert status == 2
    assert "demo.json is damaged" in printed
    assert "--fresh" in printed


def test_damaged_evaluation_is_refused(command: Command, tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text('{"format": 1}')
    status, printed = command("compare", tmp_path / "before", tmp_path / "after")
    assert status == 2
    assert "Evaluate again" in printed
