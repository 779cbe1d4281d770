import json
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.core.errors import CheckpointError
from burnish.policies.mlp import MLPPolicy
from burnish.rl.checkpoint import (
    DESCRIPTION_FILE,
    last_checkpoint,
    load_policy,
    load_training,
    read_description,
    resolve,
    save_checkpoint,
    save_run_checkpoint,
)
from tests.unit.rl.test_replay import make

TRAINING: dict[str, Any] = {
    "counts": {"iteration": 3},
    "optimiser": {"state": {"0": {"exp_avg": torch.arange(3.0), "step": torch.tensor(2.0)}}},
    "list": [torch.ones(2, 2), "text", None, 1.5, [True]],
}


def saved(directory: Path) -> MLPPolicy:
    policy = make()
    save_checkpoint(directory, policy, description={"recipe": "r"}, training=TRAINING)
    return policy


def test_round_trip(tmp_path: Path) -> None:
    policy = saved(tmp_path / "c")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["c"]
    assert sorted(item.name for item in (tmp_path / "c").iterdir()) == ["burnish.json", "policy", "training"]
    other = make()
    with torch.no_grad():
        other.log_std += 1.0
    description = load_policy(tmp_path / "c", other)
    assert description["recipe"] == "r"
    assert description["policy_spec"]["id"] == "mlp"
    assert {"burnish", "torch"} <= set(description["versions"])
    assert all(torch.equal(item, other.state_dict()[key]) for key, item in policy.state_dict().items())
    training = load_training(tmp_path / "c")
    assert training["counts"] == {"iteration": 3}
    torch.testing.assert_close(training["optimiser"]["state"]["0"]["exp_avg"], torch.arange(3.0))
    assert training["list"][1:] == ["text", None, 1.5, [True]]


def test_there_is_no_pickle(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    assert {file.suffix for file in (tmp_path / "c").rglob("*") if file.is_file()} == {".json", ".safetensors"}


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    class Failing(MLPPolicy):
        def save(self, directory: Path) -> None:
            (directory / "half").write_text("x")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        save_checkpoint(tmp_path / "c", make(Failing), description={})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    save_checkpoint(tmp_path / "c", make(), description={"recipe": "r"})
    assert sorted(item.name for item in (tmp_path / "c").iterdir()) == ["burnish.json", "policy"]
    assert [item.name for item in tmp_path.iterdir()] == ["c"]


def test_other_normalisation_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "c")

    class Other(MLPPolicy):
        def load(self, directory: Path) -> None:
            super().load(directory)
            self.state_mean += 1.0

    with pytest.raises(CheckpointError, match=r"trained with normalisation .* but the loaded one has"):
        load_policy(tmp_path / "c", make(Other))


def damage(directory: Path, file: str, text: str | None) -> None:
    target = directory / file
    if text is None:
        target.unlink()
    else:
        target.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (DESCRIPTION_FILE, None, "is missing"),
        (DESCRIPTION_FILE, "{", "is damaged"),
        (DESCRIPTION_FILE, "[]", "expected a JSON object, found list"),
        (DESCRIPTION_FILE, json.dumps({"format_version": 99}), "checkpoint format 99"),
        ("training/state.json", None, "is missing"),
        ("training/state.json", '{"a": {"$tensor": "/gone"}}', "no tensor '/gone'"),
        ("training/state.safetensors", None, "cannot be read"),
        ("training/state.safetensors", "junk", "cannot be read"),
        ("policy/model.safetensors", "junk", "Cannot read"),
    ],
)
def test_damaged_checkpoints_say_what_is_wrong(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    saved(tmp_path / "c")
    damage(tmp_path / "c", file, text)

    def read() -> None:
        load_policy(tmp_path / "c", make())
        load_training(tmp_path / "c")

    with pytest.raises(CheckpointError, match=message):
        read()


def test_a_checkpoint_that_only_acts_cannot_be_resumed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", make(), description={})
    with pytest.raises(CheckpointError, match="no folder 'training'"):
        load_training(tmp_path / "c")
    (tmp_path / "c" / "policy").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="no folder 'policy'"):
        load_policy(tmp_path / "c", make())


def test_a_run_points_at_its_newest_checkpoint_and_keeps_a_few(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        resolve(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        resolve(tmp_path / "nowhere")
    policy = make()
    for iteration in (1, 2, 3):
        path = save_run_checkpoint(tmp_path, iteration, policy, description={}, training={"n": iteration}, keep=2)
    folder = tmp_path / "checkpoints"
    assert sorted(item.name for item in folder.iterdir()) == ["000002", "000003", "last"]
    assert resolve(tmp_path) == resolve(path) == path
    assert read_description(path)["iteration"] == 3
    (folder / "last").unlink()
    assert resolve(tmp_path) == path


def test_what_a_kill_left_behind_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    save_run_checkpoint(tmp_path, 1, make(), description={}, training={})
    folder = tmp_path / "checkpoints"
    (folder / ".writing-1-000002" / "policy").mkdir(parents=True)
    (folder / "000007").mkdir()
    (folder / "last").write_text("000009\n")
    assert resolve(tmp_path).name == "000001"
    save_run_checkpoint(tmp_path, 2, make(), description={}, training={})
    assert not list(folder.glob(".*"))
