"""Both policies export themselves, and the graph answers as they do; the export refuses a graph that does not."""

from pathlib import Path
from typing import Any

import pytest

from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec, MetricSpec
from burnish.deploy.exported import ExportedPolicy
from burnish.policies import act, mlp
from burnish.rl.export import export, make_up

VECTORS = {"observation.state": ArraySpec((5,)), "observation.environment_state": ArraySpec((3,))}
CAMERA = {"observation.images.top": ArraySpec((32, 32, 3), "uint8")}


def env_spec(observation: dict[str, ArraySpec]) -> EnvSpec:
    return EnvSpec(
        id="reach",
        observation={**observation, "observation.wrench": ArraySpec((6,), unit="N")},
        action=ArraySpec((4,), low=-0.5, high=2.0),
        control_dt=0.05,
        max_episode_steps=10,
        tasks=("reach",),
        metrics={"success": MetricSpec("binary")},
    )


SMALL: dict[str, Any] = {"chunk_steps": 3, "dim_model": 16, "n_heads": 2, "dim_feedforward": 32}


@pytest.mark.parametrize(
    ("config", "observation"),
    [
        (mlp.Config(chunk_steps=3, hidden=(16,)), VECTORS),
        (act.Config(**SMALL, extra_state_keys=("observation.wrench",)), VECTORS),
        (act.Config(**SMALL, n_decoder_layers=2, pre_norm=True), {**VECTORS, **CAMERA}),
    ],
    ids=["mlp", "act with an added sensor", "act with a camera"],
)
def test_graph_answers_as_the_policy_does(config: Any, observation: dict[str, ArraySpec], tmp_path: Path) -> None:
    policy = config.build(env_spec(observation), generator=stream(0, "weights"))
    report = export(policy, tmp_path / "onnx", samples=6)
    assert report.relative_difference < 1e-4
    exported = ExportedPolicy(tmp_path / "onnx")
    chunk = exported.act(make_up(policy.spec, 2, seed=1), generator=stream(0), deterministic=True).action_chunk
    assert chunk.shape == (2, 3, 4)
