"""Read and write the directories of lerobot's ACT: configuration, weights, and normalisation in its processors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from burnish.core.errors import CheckpointError, ConfigError, require
from burnish.core.spec import Array
from burnish.policies.act_network import Affine

STATE, ENVIRONMENT, ACTION = "observation.state", "observation.environment_state", "action"
SIDE_FILE = "burnish_policy.json"
"""Written beside lerobot's files; lerobot does not read it."""

ARCHITECTURE = {
    "chunk_steps": "chunk_size",
    "dim_model": "dim_model",
    "n_heads": "n_heads",
    "dim_feedforward": "dim_feedforward",
    "n_encoder_layers": "n_encoder_layers",
    "n_decoder_layers": "n_decoder_layers",
    "pre_norm": "pre_norm",
    "feedforward_activation": "feedforward_activation",
    "latent_dim": "latent_dim",
    "vision_backbone": "vision_backbone",
    "dilated_backbone": "replace_final_stride_with_dilation",
}
"""Field of the act policy's Config to that of lerobot's ACTConfig."""

type Stats = dict[str, dict[str, Array]]
"""Per key and name ("mean", "std", "min", ...) one array, as in lerobot's normaliser."""


@dataclass(frozen=True)
class Stock:
    """What a lerobot directory holds."""

    config: Any
    """lerobot's ACTConfig, without the variational encoder."""
    weights: dict[str, torch.Tensor] | None
    """Of lerobot's ACTPolicy, without the variational encoder; None for new ones."""
    stats: Stats
    state_keys: tuple[str, ...] = (STATE,)
    """Keys whose concatenation is ``observation.state``; more than one where burnish wrote the directory."""
    side: Mapping[str, Any] = field(default_factory=dict)
    """Contents of ``SIDE_FILE``, empty where lerobot wrote the directory."""


def read_stock(directory: Path) -> Stock:
    """Read a directory that ``lerobot-train`` or burnish wrote.

    Raises:
        CheckpointError: If a file is missing or damaged, or the policy is not an ACT.
    """
    require("lerobot", "lerobot", "the act policy")
    plain = _read_json(directory / "config.json", "a lerobot policy directory has it")
    if plain.get("type") != "act":
        raise CheckpointError(f"'{directory}' holds a lerobot policy of type {plain.get('type')!r}, not 'act'.")
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        _read_json(
            directory / name,
            "directories of lerobot before 0.4 keep their statistics elsewhere: convert them with "
            "'python -m lerobot.processor.migrate_policy_normalization --pretrained-path DIR'",
        )
    from lerobot.policies.act.configuration_act import ACTConfig

    known = {key: item for key, item in plain.items() if key != "type"}
    known.update(device="cpu", pretrained_backbone_weights=None, use_vae=False)
    try:
        config = _parse(ACTConfig, known)
        weights = load_file(directory / "model.safetensors")
        stats = _read_stats(config, directory)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"Cannot read the ACT policy in '{directory}': {error}.") from error
    side = _read_json(directory / SIDE_FILE, "") if (directory / SIDE_FILE).exists() else {}
    return Stock(
        config=config,
        weights={key: item for key, item in weights.items() if not key.startswith("model.vae_encoder")},
        stats=stats,
        state_keys=tuple(side.get("state_keys", (STATE,))),
        side=side,
    )


def write_stock(directory: Path, policy: Any, stats: Stats) -> None:
    """Write lerobot's ACTPolicy and its processors as lerobot itself does."""
    from lerobot.policies.act.processor_act import make_act_pre_post_processors

    directory.mkdir(parents=True, exist_ok=True)
    policy.save_pretrained(directory)
    tensors = {key: {name: torch.as_tensor(item) for name, item in part.items()} for key, part in stats.items()}
    for processor in make_act_pre_post_processors(policy.config, tensors):
        processor.save_pretrained(directory)


def make_stock_policy(config: Any, weights: Mapping[str, torch.Tensor] | None, generator: torch.Generator) -> Any:
    """Return lerobot's ACTPolicy in evaluation mode; without weights they are drawn from ``generator``.

    Raises:
        CheckpointError: If the weights do not fit the configuration.
    """
    from lerobot.policies.act.modeling_act import ACTPolicy

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        policy = ACTPolicy(config)
    if weights is not None:
        try:
            policy.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise CheckpointError(f"The ACT weights do not fit their config.json: {error}.") from error
    if config.image_features:
        policy.model.backbone.to(memory_format=torch.channels_last)
    return policy.eval()


def widen(stock: Stock, extra: Mapping[str, Array]) -> Stock:
    """Return the directory's contents with vectors appended to ``observation.state``, acting the same at first.

    The new columns of the state projection are zero; the statistics get mean 0 and the given scale.

    Args:
        stock: What to widen.
        extra: For each new key the scale (D,) of its entries, in their unit.
    """
    from lerobot.configs.types import PolicyFeature

    if not extra or stock.weights is None:
        return stock
    scale = np.concatenate(list(extra.values())).astype(np.float32)
    feature = stock.config.input_features[STATE]
    width = feature.shape[0]
    stock.config.input_features[STATE] = PolicyFeature(type=feature.type, shape=(width + len(scale),))
    name = "model.encoder_robot_state_input_proj.weight"
    weights = dict(stock.weights)
    weights[name] = torch.cat((weights[name], weights[name].new_zeros(len(weights[name]), len(scale))), 1)
    stats = dict(stock.stats)
    if STATE in stats:
        filling = {"mean": 0.0, "q50": 0.0, "min": -1.0, "q01": -1.0, "q10": -1.0}
        stats[STATE] = {
            key: np.concatenate((item, filling.get(key, 1.0) * scale)) if item.shape == (width,) else item
            for key, item in stats[STATE].items()
        }
    return Stock(stock.config, weights, stats, (*stock.state_keys, *extra), stock.side)


def architecture(stock: Stock) -> dict[str, Any]:
    """Return the fields of the act policy's Config that the directory decides."""
    inputs = (STATE, *((ENVIRONMENT,) if stock.config.env_state_feature else ()), *stock.config.image_features)
    fields: dict[str, Any] = {ours: getattr(stock.config, name) for ours, name in ARCHITECTURE.items()}
    fields["dilated_backbone"] = bool(fields["dilated_backbone"])
    return {**fields, "observation_keys": inputs, "extra_state_keys": stock.state_keys[1:]}


def normalisers(stock: Stock) -> dict[str, Affine]:
    """Return lerobot's normalisation of the state, the environment state, each camera's channels, and the action."""
    config, stats = stock.config, stock.stats
    parts = {"state": _affine(config, stats, STATE, "STATE", config.robot_state_feature.shape)}
    if config.env_state_feature:
        parts["environment"] = _affine(config, stats, ENVIRONMENT, "ENV", config.env_state_feature.shape)
    for key in config.image_features:
        parts[module_name(key)] = _affine(config, stats, key, "VISUAL", (3,))
    parts["action"] = _affine(config, stats, ACTION, "ACTION", config.action_feature.shape, inverse=True)
    return parts


def module_name(key: str) -> str:
    """Return a camera's key as torch allows it for a module."""
    return key.replace(".", "_")


def _affine(config: Any, stats: Stats, key: str, kind: str, shape: tuple[int, ...], *, inverse: bool = False) -> Affine:
    mode = getattr(config.normalization_mapping.get(kind), "value", "IDENTITY")
    if mode == "IDENTITY" or key not in stats:
        return Affine(np.zeros(shape), np.ones(shape))
    bounds = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
    names = ("mean", "std") if mode == "MEAN_STD" else bounds.get(mode, ())
    if not names or any(name not in stats[key] for name in names):
        raise CheckpointError(
            f"The normaliser has mode '{mode}' for '{key}', but its statistics hold {sorted(stats[key])}."
        )
    first, second = (np.asarray(stats[key][name], np.float32).reshape(shape) for name in names)
    if mode == "MEAN_STD":
        return Affine(first, second if inverse else second + np.float32(1e-8))
    span = np.where(second == first, np.float32(1e-8), second - first)
    return Affine(first, span / 2, -1.0)


def _read_json(file: Path, hint: str) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"'{file.parent}' has no file '{file.name}'; {hint}.")
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"'{file}' is damaged: {error}.") from error
    return value


def _parse(kind: Any, plain: dict[str, Any]) -> Any:
    import draccus

    return draccus.decode(kind, plain)


def _read_stats(config: Any, directory: Path) -> Stats:
    from lerobot.policies.factory import make_pre_post_processors

    on_cpu = {"device_processor": {"device": "cpu"}}
    before, after = make_pre_post_processors(
        config, str(directory), preprocessor_overrides=on_cpu, postprocessor_overrides=on_cpu
    )
    stats: Stats = {}
    for step in (*before.steps, *after.steps):
        if getattr(step, "rename_map", None):
            raise ConfigError(f"'{directory}' renames observations ({step.rename_map}); give the env's keys instead.")
        if hasattr(step, "norm_map"):
            for key, part in step.stats.items():
                stats.setdefault(key, {name: np.asarray(item, np.float32) for name, item in part.items()})
    return stats
