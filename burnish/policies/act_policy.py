"""The policy that ``act`` builds: a Gaussian around lerobot's ACT network, with a critic over a copy of its encoder."""

import copy
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from burnish.core.config import to_plain
from burnish.core.errors import CheckError, CheckpointError
from burnish.core.spec import Observation, PolicySpec, fingerprint, to_json
from burnish.core.step import ActionSample, Evaluation
from burnish.nn import correlated, gaussian
from burnish.nn.graph import ObservationModule
from burnish.nn.mlp import torch_generator
from burnish.nn.normalise import MIN_SCALE, Statistics, affine_of
from burnish.nn.tensors import as_tensor, executed_mask
from burnish.policies import act_checkpoint
from burnish.policies.act_checkpoint import ENVIRONMENT, SIDE_FILE, Stock
from burnish.policies.act_network import (
    ENCODER_PARTS,
    Affine,
    Critic,
    EncoderCopy,
    backbone_maps,
    backbone_positions,
    decode,
    encode,
    memory_positions,
)

if TYPE_CHECKING:
    from burnish.policies.act import Config

HEADS_FILE = "burnish_heads.safetensors"
"""Log-std and critic, beside lerobot's files."""
FEATURE_PREFIX = "features."
FEATURE_BLOCK = 64
"""Observations that go through a frozen front part at once."""


class GaussianACT(nn.Module):
    """Gaussian over chunks (K, A) whose mean is lerobot's ACT; see :class:`burnish.policies.act.Config`.

    ``config`` is what builds the same architecture without the directory that it came from.
    """

    map_positions: torch.Tensor
    free: torch.Tensor

    def __init__(
        self,
        config: "Config",
        spec: PolicySpec,
        stock: Stock,
        *,
        generator: np.random.Generator,
        statistics: Statistics | None,
    ) -> None:
        """Take over what ``stock`` holds; the rest comes from ``generator``."""
        super().__init__()
        self.config, self.spec = config, spec
        source = torch_generator(generator)
        self.stock = act_checkpoint.make_stock_policy(stock.config, stock.weights, source)
        self._stats, self._state_keys = stock.stats, stock.state_keys
        self._cameras = tuple(stock.config.image_features)
        self._critic_keys = tuple(spec.critic_observation)
        self.normalisers = nn.ModuleDict(act_checkpoint.normalisers(stock))
        self.critic_normaliser = Affine(*affine_of(self._critic_keys, spec.critic_observation, statistics))
        self.log_std = nn.Parameter(_initial_log_std(config, spec, self._action.scale))
        act = self.stock.model
        shapes = [spec.observation[key].shape for key in self._cameras]
        self.register_buffer("map_positions", backbone_positions(act, shapes), persistent=False)
        self.register_buffer("free", self._action.scale > MIN_SCALE, persistent=False)
        self._all_free = bool(self.free.all())
        self._frozen_encoder = config.freeze_encoder
        self._frozen_backbone = bool(self._cameras) and (config.freeze_backbone or config.freeze_encoder)
        for name in self._frozen_parts():
            getattr(act, name).requires_grad_(False)
        own = None if config.freeze_encoder else EncoderCopy(act, with_backbone=not self._frozen_backbone)
        width = config.dim_model + len(self.critic_normaliser.mean)
        self.critic = Critic(width, config.critic_hidden, encoder=own, generator=source)
        self._hash: tuple[Any, str] = (None, "")

    @property
    def _action(self) -> Affine:
        return self.normalisers["action"]  # type: ignore[return-value]

    def train(self, mode: bool = True) -> "GaussianACT":
        """Set the mode of the new parts; lerobot's network stays in evaluation mode, so dropout is never applied."""
        super().train(mode)
        self.stock.eval()
        return self

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Sample chunks (N, K, A); log-prob (N, K) is that of the float32 action that is returned."""
        with torch.inference_mode():
            mean = self._mean(observation)
            if deterministic:
                chunk = self._action.inverse(mean)
                return ActionSample(chunk.cpu().numpy(), np.zeros(mean.shape[:2], np.float32))
            white = generator.standard_normal(mean.shape, dtype=np.float32)
            noise = as_tensor(correlated.correlate(white, self.config.noise_correlation), mean)
            log_std = self._log_std()
            chunk = self._action.inverse(mean + noise * self.free * log_std.exp())
            log_prob = self._log_prob(self._normalised(chunk), mean)
            return ActionSample(chunk.cpu().numpy(), log_prob.cpu().numpy())

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        """Return log-prob (B, G) of the steps of the stored chunk, and entropy (B,) averaged over executed steps."""
        action = self._normalised(sample.action_chunk)
        steps = action.shape[1]
        mean = self._mean(observation)[:, :steps]
        log_prob = self._log_prob(action, mean)
        mask = executed_mask(executed, steps, action.device)
        entropy = correlated.entropy(self._pick(mean), self._pick(self._log_std()), self.config.noise_correlation)
        return Evaluation(log_prob, gaussian.masked_mean(entropy, mask))

    def divergence(
        self, observation: Observation, sample: ActionSample, reference: "GaussianACT", executed: Any
    ) -> torch.Tensor:
        """Return KL(reference || self) (B,), nats, summed over executed steps; ``reference`` gets no gradient."""
        steps = sample.action_chunk.shape[1]
        with torch.no_grad():
            mean, log_std = reference._mean(observation)[:, :steps], reference._log_std()
            if not torch.equal(self._action.scale, reference._action.scale):
                mean = self._normalised(reference._action.inverse(mean))
                log_std = log_std + torch.log(reference._action.scale / self._action.scale)
        mine = self._pick(self._mean(observation)[:, :steps]), self._pick(self._log_std())
        kl = correlated.kl(self._pick(mean), self._pick(log_std), *mine, self.config.noise_correlation)
        return (kl * executed_mask(executed, steps, kl.device)).sum(-1)

    def imitation_loss(self, observation: Observation, action_chunk: Any, executed: Any) -> torch.Tensor:
        """Return (B,) mean absolute error of the mean chunk over executed steps, normalised action units."""
        return gaussian.chunk_error(self._mean(observation), self._normalised(action_chunk), executed)

    def value(self, observation: Observation) -> torch.Tensor:
        """Return V(s), (B,)."""
        own = self.critic.encoder
        if own is None:
            memory = self._memory(observation)
        else:
            maps = self._maps(observation, getattr(own, "backbone", None))
            memory = encode(own, self._vectors(observation), maps, self.map_positions)
        extra = None
        if self._critic_keys:
            extra = self.critic_normaliser(self._gather(observation, self._critic_keys)).clamp(-10, 10)
        value: torch.Tensor = self.critic(memory, extra)
        return value

    def precompute(self, observation: Observation) -> Observation:
        """Return the observation with the frozen part's features, under a key that names its weights.

        Evaluating with features of other weights is refused. Without a frozen part nothing changes.
        """
        name = self._feature_name()
        if not name or name in observation:
            return observation
        read = self._cameras if not self._frozen_encoder else tuple(self.spec.observation)
        replaced = [key for key in read if key not in self._critic_keys]
        count = len(observation[read[0]])
        compute = self._memory if self._frozen_encoder else self._maps
        with torch.no_grad():
            blocks = [
                compute({key: observation[key][i : i + FEATURE_BLOCK] for key in read})
                for i in range(0, count, FEATURE_BLOCK)
            ]
        features = torch.cat(blocks)  # type: ignore[arg-type]
        as_numpy = isinstance(observation[read[0]], np.ndarray)
        rest = {key: item for key, item in observation.items() if key not in replaced}
        return {**rest, name: features.cpu().numpy() if as_numpy else features}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return trainable parameters: actor (with the log-std), critic, and backbone unless it is frozen."""
        named = [(name, item) for name, item in self.stock.named_parameters() if item.requires_grad]
        groups = {
            "actor": [*(item for name, item in named if not name.startswith("model.backbone")), self.log_std],
            "critic": list(self.critic.parameters()),
        }
        backbone = [item for name, item in named if name.startswith("model.backbone")]
        return {**groups, "backbone": backbone} if backbone else groups

    def clone(self) -> "GaussianACT":
        """Return a frozen deep copy."""
        twin = copy.deepcopy(self)
        twin.requires_grad_(False)
        return twin

    def normalisation(self) -> dict[str, Any]:
        """Return mean, scale and shift of all inputs and of the action."""
        parts = {**dict(self.normalisers.items()), "critic": self.critic_normaliser}
        return {name: {key: item.tolist() for key, item in part.named_buffers()} for name, part in parts.items()}

    def save(self, directory: Path) -> None:
        """Write a directory that stock lerobot loads, with log-std and critic in files of their own."""
        act_checkpoint.write_stock(directory, self.stock, self._stats)
        heads = {key: self.state_dict()[key].detach().cpu().contiguous() for key in self._head_names()}
        save_file(heads, directory / HEADS_FILE)
        side = {
            "policy": "act",
            "config": to_plain(self.config),
            "spec": to_json(self.spec),
            "state_keys": list(self._state_keys),
            "normalisation": fingerprint(self.normalisation()),
        }
        (directory / SIDE_FILE).write_text(json.dumps(side, indent=2) + "\n", encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote; a directory of lerobot alone is given as ``Config.path`` instead."""
        stock = act_checkpoint.read_stock(directory)
        if not stock.side:
            raise CheckpointError(
                f"'{directory}' was written by lerobot, without log-std and critic; start from it with policy.path."
            )
        found = act_checkpoint.architecture(stock)
        wanted = {name: getattr(self.config, name) for name in found}
        differing = [
            f"{name} is {found[name]}, expected {wanted[name]}" for name in found if found[name] != wanted[name]
        ]
        if differing:
            raise CheckpointError(f"The ACT policy in '{directory}' differs from this one: {'; '.join(differing)}.")
        try:
            heads = load_file(directory / HEADS_FILE)
            missing = set(self._head_names()) ^ set(heads)
            if missing:
                raise CheckpointError(f"'{directory / HEADS_FILE}' and this policy differ in {sorted(missing)}.")
            self.stock.load_state_dict(stock.weights)
            self.load_state_dict(heads, strict=False)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"Cannot read the ACT policy in '{directory}': {error}.") from error
        self.stock.config = self.stock.model.config = stock.config
        self._stats = stock.stats
        self.normalisers.load_state_dict(nn.ModuleDict(act_checkpoint.normalisers(stock)).state_dict())
        self.free.copy_(self._action.scale > MIN_SCALE)
        self._all_free = bool(self.free.all())
        if fingerprint(self.normalisation()) != stock.side["normalisation"]:
            raise CheckpointError(f"The normalisation in '{directory}' is not the one that was saved; it was changed.")

    def export_module(self) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
        """Return (module, example inputs, input names): raw entries (1, ...) to the most likely chunk (1, K, A)."""
        keys = tuple(self.spec.observation)
        module = ObservationModule(self, keys, lambda observation: self._action.inverse(self._mean(observation)))
        examples = tuple(
            torch.zeros(1, *item.shape, dtype=getattr(torch, item.dtype)) for item in self.spec.observation.values()
        )
        return module, examples, keys

    def _head_names(self) -> list[str]:
        prefixes = ("critic.", "critic_normaliser.", "log_std")
        return [name for name in self.state_dict() if name.startswith(prefixes)]

    def _mean(self, observation: Observation) -> torch.Tensor:
        act = self.stock.model
        return decode(act, self._memory(observation), memory_positions(act, self.map_positions))

    def _memory(self, observation: Observation) -> torch.Tensor:
        if self._frozen_encoder and self._cached(observation):
            return as_tensor(observation[self._feature_name()], self.log_std)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen_encoder):
            maps = self._maps(observation)
            return encode(self.stock.model, self._vectors(observation), maps, self.map_positions)

    def _maps(self, observation: Observation, backbone: Any = None) -> torch.Tensor | None:
        if not self._cameras:
            return None
        if not self._frozen_encoder and self._cached(observation):
            return as_tensor(observation[self._feature_name()], self.log_std)
        images = [as_tensor(observation[key], self.log_std, None) for key in self._cameras]
        normalisers = [self.normalisers[act_checkpoint.module_name(key)] for key in self._cameras]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen_backbone):
            return backbone_maps(backbone or self.stock.model.backbone, images, normalisers)

    def _vectors(self, observation: Observation) -> list[torch.Tensor]:
        vectors = [self.normalisers["state"](self._gather(observation, self._state_keys))]
        if "environment" in self.normalisers:
            vectors.append(self.normalisers["environment"](as_tensor(observation[ENVIRONMENT], self.log_std)))
        return vectors

    def _gather(self, observation: Observation, keys: tuple[str, ...]) -> torch.Tensor:
        parts = [as_tensor(observation[key], self.log_std) for key in keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _log_std(self) -> torch.Tensor:
        return self.log_std.clamp_min(math.log(self.config.min_std))

    def _normalised(self, action_chunk: Any) -> torch.Tensor:
        normalised: torch.Tensor = self._action(as_tensor(action_chunk, self.log_std))
        return normalised

    def _log_prob(self, action: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        correlation = self.config.noise_correlation
        return correlated.log_prob(self._pick(action), self._pick(mean), self._pick(self._log_std()), correlation)

    def _pick(self, entries: torch.Tensor) -> torch.Tensor:
        """Return the action entries that varied in the demonstrations; the others are never explored."""
        return entries if self._all_free else entries[..., self.free]

    def _frozen_parts(self) -> list[str]:
        names = [*(ENCODER_PARTS if self._frozen_encoder else ()), *(("backbone",) if self._frozen_backbone else ())]
        return [name for name in names if hasattr(self.stock.model, name)]

    def _feature_name(self) -> str:
        """Return the key of cached features, which holds a hash of the frozen weights; "" without a frozen part."""
        parts = self._frozen_parts()
        if not parts:
            return ""
        tensors = [item for name in parts for item in getattr(self.stock.model, name).state_dict().values()]
        tensors += self.normalisers.state_dict().values()
        state = [(item.data_ptr(), item._version) for item in tensors]
        if self._hash[0] != state:
            digest = hashlib.sha256("|".join(self._cameras).encode())
            for item in tensors:
                digest.update(item.detach().cpu().contiguous().numpy().tobytes())
            self._hash = (state, digest.hexdigest()[:16])
        return f"{FEATURE_PREFIX}{'memory' if self._frozen_encoder else 'maps'}.{self._hash[1]}"

    def _cached(self, observation: Observation) -> bool:
        found = [key for key in observation if key.startswith(FEATURE_PREFIX)]
        name = self._feature_name() if found else ""
        if found and name not in found:
            raise CheckError(
                f"The observation carries cached features {found}, but this policy's frozen part is "
                f"{name or 'not frozen'}: they are stale. Precompute them again with the present weights."
            )
        return bool(found)


def _initial_log_std(config: "Config", spec: PolicySpec, normaliser_scale: torch.Tensor) -> torch.Tensor:
    """Return (A,) log-std in normalised units: ``init_std``, times the spec's scale of an action where it has one."""
    std = torch.full(spec.action.shape, config.init_std)
    if spec.action.scale is not None:
        usual = torch.as_tensor(spec.action.scale, dtype=torch.float32).expand(spec.action.shape)
        std = std * usual / normaliser_scale.clamp_min(MIN_SCALE)
    return torch.log(std.clamp_min(config.min_std))
