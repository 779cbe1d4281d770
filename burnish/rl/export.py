"""Policy -> ``model.onnx`` + ``spec.json`` + ``transforms.json`` + README, proven equal to the policy itself.

Normalisation is inside the graph: it takes one observation as the environment gives it (batch axis of 1, as a robot
has it) and answers with the most likely chunk in the environment's units. ``burnish.deploy.exported`` runs the folder
without torch.
"""

import json
import logging
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import CheckError, ConfigError, require
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, ArraySpec, Observation, PolicySpec, to_json
from burnish.rl.card import Evaluated, model_card

if TYPE_CHECKING:
    from collections.abc import Iterator

OPSET = 17
"""ONNX operator set of the exported graph."""
FORMAT = "burnish onnx 1"
OUTPUT = "action_chunk"
"""Name of the graph's output, (1, K, A) float32."""


@runtime_checkable
class Exportable(Protocol):
    """A policy that can be written as a graph."""

    def export_module(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
        """Return (module, example inputs, input names).

        The module takes one tensor (1, ...) per name, unnormalised, in that order, and returns the deterministic
        chunk (1, K, A) in the env's units, by torch operations only. The names are the keys of ``spec.observation``.
        """
        ...


@dataclass(frozen=True)
class ParityReport:
    """How the exported graph compares with the policy."""

    observations: int
    """How many were compared."""
    max_difference: float
    """Largest absolute difference of an action entry, in action units."""
    relative_difference: float
    """The same, divided by the range of each action entry over all answers."""
    tolerance: float
    """Largest relative difference allowed."""
    torch_ms: float
    """Median time of ``policy.act`` for one observation [ms]."""
    onnx_ms: float
    """Median time of onnxruntime for one observation [ms]."""

    def text(self) -> str:
        """Return one line for a terminal."""
        return (
            f"parity over {self.observations} observations: largest difference {self.max_difference:.3g} "
            f"({self.relative_difference:.3g} of the action's range); torch {self.torch_ms:.2f} ms, "
            f"onnxruntime {self.onnx_ms:.2f} ms"
        )


def export(
    policy: TrainablePolicy,
    directory: Path,
    *,
    description: Mapping[str, Any] | None = None,
    evaluations: Sequence[Evaluated] = (),
    observation: Observation | None = None,
    samples: int = 32,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> ParityReport:
    """Write a policy as an ONNX folder, and prove that it answers the same.

    Args:
        policy: A policy with ``export_module`` (see :class:`Exportable`).
        directory: New folder; it appears complete or not at all.
        description: JSON values for ``spec.json``, for example env spec, control_dt, replan_steps, fingerprint.
        evaluations: Of this policy, for the model card.
        observation: Real observations (B, ...) to compare on; None makes some up from the spec.
        samples: How many to make up.
        tolerance: Largest difference allowed, as a share of the action's range.
        seed: Seed of what is made up.

    Raises:
        ConfigError: If the policy has no graph, or the folder exists.
        MissingExtraError: If onnx or onnxruntime is not installed.
        CheckError: If graph and policy differ; nothing is left behind.
    """
    for package in ("onnx", "onnxruntime"):
        require(package, "onnx", "exporting to ONNX")
    spec = policy.spec
    if not isinstance(policy, Exportable):
        raise ConfigError(
            f"Policy '{spec.id}' cannot be exported: it has no export_module(), which returns "
            "(torch module, example inputs, input names)."
        )
    if directory.exists():
        raise ConfigError(f"'{directory}' exists already; export into a new folder.")
    module, examples, names = policy.export_module()
    if set(names) != set(spec.observation) or len(examples) != len(names):
        raise ConfigError(
            f"export_module() of policy '{spec.id}' names inputs {list(names)}; they must be the keys that the policy "
            f"reads, {list(spec.observation)}, with one example each."
        )
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_graph(module, examples, names, partial / "model.onnx")
        compared = observation if observation is not None else make_up(spec, samples, seed)
        report = check_parity(policy, partial / "model.onnx", names, compared, tolerance)
        _write_json(partial / "spec.json", _describe(policy, names, description or {}, report))
        transforms = {"in_graph": True, "normalisation": policy.normalisation()}
        _write_json(partial / "transforms.json", transforms)
        card = model_card(spec, description or {}, report.text(), evaluations)
        (partial / "README.md").write_text(card, encoding="utf-8")
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def check_parity(
    policy: TrainablePolicy, model: Path, names: tuple[str, ...], observation: Observation, tolerance: float
) -> ParityReport:
    """Compare a graph with ``policy.act(deterministic=True)``, one observation (B = 1) at a time.

    Raises:
        CheckError: If they differ by more than ``tolerance``.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    count = len(observation[names[0]])
    inputs = {name: np.asarray(observation[name]) for name in names}
    expected, got, torch_s, onnx_s = [], [], [], []
    for row in range(count):
        single = {key: item[row : row + 1] for key, item in observation.items()}
        begin = time.perf_counter()
        sample = policy.act(single, generator=stream(0, "export"), deterministic=True)
        middle = time.perf_counter()
        got.append(session.run([OUTPUT], {name: inputs[name][row : row + 1] for name in names})[0])
        onnx_s.append(time.perf_counter() - middle)
        torch_s.append(middle - begin)
        expected.append(np.asarray(sample.action_chunk))
    wanted, answer = np.concatenate(expected), np.concatenate(got)
    if wanted.shape != answer.shape:
        raise CheckError(f"The exported graph answers with shape {answer.shape}, the policy with {wanted.shape}.")
    difference = np.abs(wanted.astype(float) - answer)
    span = np.maximum(np.ptp(wanted, axis=(0, 1)), 1e-3 * np.abs(wanted).max() + 1e-9)
    report = ParityReport(
        observations=count,
        max_difference=float(difference.max()),
        relative_difference=float((difference / span).max()),
        tolerance=tolerance,
        torch_ms=float(np.median(torch_s)) * 1e3,
        onnx_ms=float(np.median(onnx_s)) * 1e3,
    )
    if not report.relative_difference <= tolerance:
        raise CheckError(
            f"The exported graph of policy '{policy.spec.id}' does not answer as the policy does: {report.text()}, "
            f"allowed {tolerance:.3g}. Its export_module() computes something else than act(deterministic=True)."
        )
    return report


def make_up(spec: PolicySpec, count: int, seed: int) -> Observation:
    """Return ``count`` observations within the limits of a spec; standard normal where there are none."""
    observation: Observation = {
        key: _made_up(item, count, stream(seed, "export", key)) for key, item in spec.observation.items()
    }
    observation[TASK_KEY] = [""] * count
    return observation


def _made_up(spec: ArraySpec, count: int, generator: np.random.Generator) -> Array:
    shape = (count, *spec.shape)
    if np.dtype(spec.dtype).kind in "iu":
        return generator.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(spec.dtype)
    low, high = spec.bounds()
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
    return np.where(bounded, uniform, generator.standard_normal(shape)).astype(spec.dtype)


def _write_graph(
    module: torch.nn.Module, examples: tuple[torch.Tensor, ...], names: tuple[str, ...], path: Path
) -> None:
    training = module.training
    module.eval()
    try:
        with torch.no_grad(), _quiet():
            torch.onnx.export(
                module,
                examples,
                str(path),
                input_names=list(names),
                output_names=[OUTPUT],
                opset_version=OPSET,
                dynamo=False,  # several times faster than the new exporter, with the same answers
            )
    finally:
        module.train(training)


@contextmanager
def _quiet() -> "Iterator[None]":
    """Drop the exporter's remarks about its own age and about shapes that are constant by design."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _describe(
    policy: TrainablePolicy, names: tuple[str, ...], description: Mapping[str, Any], report: ParityReport
) -> dict[str, Any]:
    import onnxruntime

    return {
        **description,
        "format": FORMAT,
        "policy_spec": to_json(policy.spec),
        "inputs": list(names),
        "output": OUTPUT,
        "opset": OPSET,
        "versions": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
        "parity": asdict(report),
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
