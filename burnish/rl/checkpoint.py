"""Checkpoint folders: safetensors and JSON only, written beside and renamed, so that a kill never leaves a half one.

A run folder holds ``checkpoints/<iteration>/`` and the file ``checkpoints/last``, which names the newest. A checkpoint
folder holds ``burnish.json`` (what this is), ``policy/`` (what ``policy.save`` wrote) and, to resume, ``training/``.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import CheckpointError
from burnish.core.packages import versions
from burnish.core.spec import fingerprint, to_json
from burnish.data.durable import durable_folder, durable_text, is_temporary

FORMAT_VERSION = 1
DESCRIPTION_FILE = "burnish.json"
PACKAGES = ("burnish", "torch", "numpy", "mujoco", "lerobot")
"""Whose versions decide what a checkpoint means."""
_TENSOR = "$tensor"


def save_checkpoint(
    directory: Path,
    policy: TrainablePolicy,
    *,
    description: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint folder; it appears complete or not at all.

    Args:
        directory: Folder to be made; one of that name is replaced.
        policy: Saved under ``policy/``.
        description: JSON values for ``burnish.json``; the policy's spec, the fingerprint of its normalisation, the
            format's and packages' versions are added.
        training: Nested mappings and lists of JSON values and tensors; None for a checkpoint that only acts.
    """
    with durable_folder(directory) as temporary:
        (temporary / "policy").mkdir()
        policy.save(temporary / "policy")
        if training is not None:
            (temporary / "training").mkdir()
            write_state(temporary / "training", training)
        whole = {
            **description,
            "format_version": FORMAT_VERSION,
            "policy_spec": to_json(policy.spec),
            "normalisation": fingerprint(policy.normalisation()),
            "versions": versions(PACKAGES),
        }
        write_json(temporary / DESCRIPTION_FILE, whole)


def read_description(directory: Path) -> dict[str, Any]:
    """Return ``burnish.json`` of a checkpoint folder.

    Raises:
        CheckpointError: If it is missing, damaged, or of a newer format.
    """
    description = read_json(directory / DESCRIPTION_FILE)
    found = description.get("format_version")
    if found != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory}: checkpoint format {found!r}, but this burnish reads format {FORMAT_VERSION}. "
            "Use the burnish version that wrote it (see 'versions' in burnish.json)."
        )
    return description


def load_policy(directory: Path, policy: TrainablePolicy) -> dict[str, Any]:
    """Load a checkpoint's weights into a policy built for it, and return the description.

    Raises:
        CheckpointError: If a part is missing, or the normalisation is not the one it was trained with.
    """
    description = read_description(directory)
    if not (directory / "policy").is_dir():
        raise CheckpointError(f"{directory} has no folder 'policy'; it holds {sorted(os.listdir(directory))}.")
    policy.load(directory / "policy")
    check_normalisation(policy, description, directory)
    return description


def check_normalisation(policy: TrainablePolicy, description: Mapping[str, Any], directory: Path) -> None:
    """Refuse a policy whose normalisation statistics are not those of the checkpoint.

    Raises:
        CheckpointError: Names both fingerprints.
    """
    wanted, found = description.get("normalisation"), fingerprint(policy.normalisation())
    if wanted != found:
        raise CheckpointError(
            f"{directory}: the policy was trained with normalisation {wanted}, but the loaded one has {found}. "
            "With other statistics the same observation means something else to it. The files under policy/ were "
            "changed, or the policy was built with statistics that its load() does not replace; use those of the "
            "training dataset."
        )


def load_training(directory: Path) -> dict[str, Any]:
    """Return what was passed as ``training`` to :func:`save_checkpoint`.

    Raises:
        CheckpointError: If the checkpoint only acts, or is damaged.
    """
    if not (directory / "training").is_dir():
        raise CheckpointError(
            f"{directory} has no folder 'training': it can act, but training cannot be resumed from it."
        )
    return read_state(directory / "training")


def resolve(path: Path) -> Path:
    """Return the checkpoint folder that a run folder or a checkpoint folder stands for.

    Raises:
        CheckpointError: If it is neither.
    """
    path = Path(path)
    if (path / DESCRIPTION_FILE).is_file():
        return path
    newest = last_checkpoint(path)
    if newest is not None:
        return newest
    what = f"holds {sorted(os.listdir(path))[:8]}" if path.is_dir() else "does not exist"
    raise CheckpointError(
        f"{path} is neither a checkpoint (a folder with {DESCRIPTION_FILE}) nor a run with one under checkpoints/: "
        f"it {what}.{_lerobot_hint(path)}"
    )


def _lerobot_hint(path: Path) -> str:
    if not {"config.json", "model.safetensors"} <= set(os.listdir(path) if path.is_dir() else ()):
        return ""
    return (
        " It looks like a policy folder of lerobot. burnish train pac_act --policy.path takes it; to evaluate it as it "
        f"is, adopt it first: burnish train pretrain --policy.path {path} --dataset DATASET --numbers.steps 1 "
        "--numbers.learning_rate 0 --out RUN"
    )


def last_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run folder, None where there is none yet."""
    folder = run / "checkpoints"
    pointer = folder / "last"
    if pointer.is_file():
        named = folder / pointer.read_text(encoding="utf-8").strip()
        if (named / DESCRIPTION_FILE).is_file():
            return named
    numbered = [item for item in folder.glob("[0-9]*") if (item / DESCRIPTION_FILE).is_file()]
    return max(numbered, key=lambda item: int(item.name), default=None)


def save_run_checkpoint(
    run: Path,
    iteration: int,
    policy: TrainablePolicy,
    *,
    description: Mapping[str, Any],
    training: Mapping[str, Any],
    keep: int = 0,
) -> Path:
    """Write ``checkpoints/<iteration>``, point ``last`` at it, drop all but the newest ``keep`` (0 keeps all)."""
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in filter(is_temporary, folder.iterdir()):
        shutil.rmtree(leftover, ignore_errors=True)
    target = folder / f"{iteration:06d}"
    save_checkpoint(target, policy, description={**description, "iteration": iteration}, training=training)
    durable_text(folder / "last", target.name + "\n")
    if keep:
        numbered = sorted(folder.glob("[0-9]*"), key=lambda item: int(item.name))
        for old in numbered[:-keep]:
            shutil.rmtree(old)
    return target


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write nested JSON values and tensors as ``state.json`` and ``state.safetensors``."""
    tensors: dict[str, torch.Tensor] = {}
    plain = _take_tensors(state, "", tensors)
    save_file(tensors, str(directory / "state.safetensors"))
    write_json(directory / "state.json", plain)


def read_state(directory: Path) -> dict[str, Any]:
    """Return what :func:`write_state` wrote; integer keys of mappings come back as text.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    plain = read_json(directory / "state.json")
    try:
        tensors = load_file(str(directory / "state.safetensors"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory / 'state.safetensors'} cannot be read: {error}.") from error
    state: dict[str, Any] = _put_tensors(plain, tensors)
    return state


def write_json(file: Path, value: Any) -> None:
    """Write JSON values, atomically."""
    durable_text(file, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        CheckpointError: If the file is missing or is not a JSON object.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: this is no checkpoint, or not a complete one.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} is damaged: expected a JSON object, found {type(value).__name__}.")
    return value


def _take_tensors(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        return {str(key): _take_tensors(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take_tensors(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _put_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            if value[_TENSOR] not in tensors:
                raise CheckpointError(f"state.safetensors has no tensor '{value[_TENSOR]}' that state.json names.")
            return tensors[value[_TENSOR]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    return value
