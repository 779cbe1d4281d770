"""An exported policy (``model.onnx`` + ``spec.json``) through onnxruntime, for machines without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import CheckpointError, ConfigError, require
from burnish.core.spec import Observation, PolicySpec, policy_spec_from_json
from burnish.core.step import ActionSample

_FORMAT = "burnish onnx 1"


class ExportedPolicy:
    """Answers with the most likely chunk; has what :class:`burnish.deploy.observations.ActingPolicy` asks for."""

    spec: PolicySpec

    def __init__(self, directory: Path, *, threads: int = 1) -> None:
        """Load a folder that ``burnish export`` wrote.

        Args:
            directory: The folder.
            threads: Threads per inference; one leaves the cores to the control loop.

        Raises:
            CheckpointError: If a file is missing or damaged, or is of another format.
            MissingExtraError: If onnxruntime is not installed.
        """
        require("onnxruntime", "onnx", "running an exported policy")
        import onnxruntime

        self.description = _read(directory / "spec.json")
        self.spec = policy_spec_from_json(self.description["policy_spec"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(
                str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has a type of its own per cause, all private
            raise CheckpointError(f"Cannot load '{directory / 'model.onnx'}': {error}.") from error
        given = {item.name for item in self._session.get_inputs()}
        if given != set(self.spec.observation):
            raise CheckpointError(
                f"'{directory}': the graph takes {sorted(given)}, but spec.json says {sorted(self.spec.observation)}."
            )

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Return the most likely chunks (N, K, A).

        Raises:
            ConfigError: If a sample is asked for; the graph has no noise.
        """
        if not deterministic:
            raise ConfigError("An exported policy gives its most likely chunk only; set deterministic.")
        inputs = {key: np.asarray(observation[key], item.dtype) for key, item in self.spec.observation.items()}
        rows = len(next(iter(inputs.values())))  # the graph takes one at a time
        answers = [
            self._session.run(None, {key: item[n : n + 1] for key, item in inputs.items()})[0] for n in range(rows)
        ]
        chunk = np.concatenate(answers)
        return ActionSample(chunk, np.zeros(chunk.shape[:2], np.float32))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read '{path}': {error}.") from error
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise CheckpointError(f"'{path}' is of format {found!r}, expected '{_FORMAT}'; export the policy again.")
    return value
