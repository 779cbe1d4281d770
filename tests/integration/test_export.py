import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.errors import CheckError, CheckpointError, ConfigError
from burnish.core.seeding import stream
from burnish.core.step import Start
from burnish.deploy.exported import ExportedPolicy
from burnish.deploy.runtime import Config, run_env
from burnish.envs import point_mass
from burnish.policies import mlp
from burnish.rl.export import export, make_up

STATE = "observation.state"
STATISTICS = {
    STATE: {"mean": [0.1, 0.0, 0.2, 0.0, 0.5, -0.5], "std": [0.5, 0.4, 0.3, 0.2, 0.1, 0.6]},
    "action": {"mean": [0.1, -0.2], "std": [0.3, 0.4]},
}


class Mean(torch.nn.Module):
    def __init__(self, policy: Any, shift: float) -> None:
        super().__init__()
        self.policy, self.shift = policy, shift

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        mean = self.policy._mean({STATE: state})
        chunk: torch.Tensor = mean * self.policy.action_scale + self.policy.action_mean + self.shift
        return chunk


class ExportableMLP(mlp.MLPPolicy):
    shift = 0.0
    names: tuple[str, ...] = (STATE,)

    def export_module(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
        return Mean(self, self.shift), (torch.zeros(1, 6),), self.names


class Plain(mlp.MLPPolicy):
    export_module = None  # type: ignore[assignment]


def make_policy(cls: type[mlp.MLPPolicy] = ExportableMLP) -> Any:
    config = mlp.Config(chunk_steps=4, hidden=(16,))
    spec = config.build(point_mass.Config().spec(), generator=stream(0, "x")).spec
    policy = cls(config, spec, generator=stream(0, "weights"), statistics=STATISTICS)
    with torch.no_grad():
        policy.actor[-1].weight.mul_(100)  # the initial head is almost zero, which would hide differences
    return policy


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    policy, folder = make_policy(), tmp_path_factory.mktemp("export") / "policy"
    report = export(policy, folder, description={"control_dt": 0.05})
    assert report.max_difference < 1e-5
    assert "parity over 32 observations" in report.text()
    return policy, folder


def test_the_folder_holds_graph_spec_and_transforms(exported: tuple[Any, Path]) -> None:
    policy, folder = exported
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.onnx", "spec.json", "transforms.json"]
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: burnish")
    assert "| `observation.state` | [1, 6] | float32 |" in card
    assert "parity over 32 observations" in card
    loaded = ExportedPolicy(folder)
    assert loaded.spec == policy.spec
    assert loaded.description["control_dt"] == 0.05
    assert loaded.description["parity"]["observations"] == 32
    assert policy.normalisation()["state"]["mean"][0] == pytest.approx(0.1)


@pytest.mark.parametrize("batch", [1, 5])
def test_it_answers_as_the_policy_does(exported: tuple[Any, Path], batch: int) -> None:
    policy, folder = exported
    observation = make_up(policy.spec, batch, seed=9)
    wanted = policy.act(observation, generator=stream(0), deterministic=True).action_chunk
    got = ExportedPolicy(folder).act(observation, generator=stream(0), deterministic=True)
    np.testing.assert_allclose(got.action_chunk, wanted, atol=1e-5)
    assert got.log_prob.shape == (batch, 4)
    assert np.ptp(wanted) > 0.1


def test_the_runtime_drives_with_it(exported: tuple[Any, Path]) -> None:
    policy, folder = exported
    start = Start("up", 0, 1)
    runs = [
        run_env(each, point_mass.Config().build(1), start, Config(warm_up=0))
        for each in (policy, ExportedPolicy(folder))
    ]
    np.testing.assert_allclose(runs[0].action, runs[1].action, atol=1e-4)


def test_it_runs_without_torch(exported: tuple[Any, Path]) -> None:
    code = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom burnish.deploy.exported import ExportedPolicy\n"
        "import burnish.deploy.runtime\n"
        "policy = ExportedPolicy(Path(sys.argv[1]))\n"
        "policy.act({'observation.state': np.zeros((1, 6), np.float32)}, generator=None, deterministic=True)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(exported[1])], check=True, timeout=60)


def test_a_sample_is_refused(exported: tuple[Any, Path]) -> None:
    with pytest.raises(ConfigError, match="most likely chunk only"):
        ExportedPolicy(exported[1]).act({}, generator=stream(0))


def test_a_graph_that_answers_otherwise_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    policy = make_policy()
    policy.shift = 0.01
    with pytest.raises(CheckError, match="does not answer as the policy does"):
        export(policy, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    policy = make_policy(Plain)
    with pytest.raises(ConfigError, match="has no export_module"):
        export(policy, tmp_path / "a")
    policy = make_policy()
    policy.names = ("state",)
    with pytest.raises(ConfigError, match="must be the keys that the policy reads"):
        export(policy, tmp_path / "a")
    with pytest.raises(ConfigError, match="exists already"):
        export(make_policy(), tmp_path)


def test_damaged_folders_are_named(exported: tuple[Any, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Cannot read"):
        ExportedPolicy(tmp_path)
    text = (exported[1] / "spec.json").read_text()
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(CheckpointError, match="Cannot load"):
        ExportedPolicy(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(CheckpointError, match="Cannot load"):
        ExportedPolicy(tmp_path)
    (tmp_path / "spec.json").write_text(text.replace("burnish onnx 1", "burnish onnx 9"))
    with pytest.raises(CheckpointError, match="is of format 'burnish onnx 9'"):
        ExportedPolicy(tmp_path)
