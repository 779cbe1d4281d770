"""Small chunk policy for vector observations: one tanh network per role, diagonal Gaussian over the chunk."""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from burnish.core.config import from_plain, to_plain
from burnish.core.errors import CheckpointError, ConfigError, suggest
from burnish.core.spec import Array, ArraySpec, EnvSpec, Observation, PolicySpec, check_fit, fingerprint, to_json
from burnish.core.step import ActionSample, Evaluation
from burnish.nn import gaussian
from burnish.nn.graph import ObservationModule
from burnish.nn.mlp import ACTIVATIONS, Views, forward_numpy, make_mlp, torch_generator
from burnish.nn.normalise import RunningMoments, Statistics, affine, affine_of
from burnish.nn.tensors import as_tensor, executed_mask
from burnish.policies.mlp_gradient import ACTIVATE, MLPGradient

ACTOR_PREFIXES = ("actor.", "state_", "action_", "moments")
"""Of the names of weights and buffers that make the deterministic policy."""
CLIP = 10.0
"""Normalised observations are cut at +- this, so that one odd sensor reading does not saturate the network."""


@dataclass(frozen=True)
class Config:
    """A chunk policy for vector observations.

    Actions are normalised inside: by recorded mean and standard deviation where statistics are given, else so that
    the action limits are at -1 and 1. Log-probabilities, divergences and the log-std are in those units.
    """

    path: str | None = None
    """Folder that this policy was saved in: its actor and normalisation are the start; log-std and critic are new."""
    chunk_steps: int = 8
    """Actions K per answer."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Between layers."""
    state_keys: tuple[str, ...] = ()
    """Vectors the actor reads, in order; empty means all public vectors of the env."""
    critic_keys: tuple[str, ...] = ()
    """Vectors the critic reads on top; may be privileged."""
    init_std: float = 0.3
    """Initial standard deviation, normalised action units."""
    min_std: float = 0.01
    """Floor of the standard deviation, normalised action units."""
    per_step_std: bool = False
    """Whether each of the K steps has its own standard deviation."""
    running_normalisation: bool = False
    """Whether observations are normalised by running moments, moved only by ``update_normalisation``."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.chunk_steps < 1 or any(width < 1 for width in self.hidden):
            raise ConfigError(
                f"mlp: chunk_steps ({self.chunk_steps}) and all widths of hidden {self.hidden} must be at least 1."
            )
        if not 0 < self.min_std <= self.init_std:
            raise ConfigError(f"mlp: need 0 < min_std <= init_std, found {self.min_std} and {self.init_std}.")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"mlp: no activation '{self.activation}'.{suggest(self.activation, ACTIVATIONS)}")

    def build(
        self, env_spec: EnvSpec, *, generator: np.random.Generator, statistics: Statistics | None = None
    ) -> "MLPPolicy":
        """Make the policy for an environment.

        Args:
            env_spec: Where it will act.
            generator: Source of the initial weights.
            statistics: Recorded mean and std per key, for normalisation.

        Raises:
            ConfigError: If a key does not exist or is no vector.
            SpecError: If the actor asks for a privileged key.
            CheckpointError: If ``path`` cannot be used.
        """
        vectors = {key: spec for key, spec in env_spec.observation.items() if len(spec.shape) == 1}
        public = tuple(key for key in vectors if key in env_spec.public_observation)
        state_keys = self.state_keys or public
        for key in (*state_keys, *self.critic_keys):
            if key not in vectors:
                raise ConfigError(f"mlp: '{key}' is no vector of environment '{env_spec.id}'.{suggest(key, vectors)}")
        if not state_keys:
            raise ConfigError(f"mlp: environment '{env_spec.id}' has no public vector; images need another policy.")
        spec = PolicySpec(
            id="mlp",
            observation={key: vectors[key] for key in state_keys},
            action=env_spec.action,
            chunk_steps=self.chunk_steps,
            critic_observation={key: vectors[key] for key in self.critic_keys},
        )
        check_fit(spec, env_spec)
        policy = MLPPolicy(replace(self, path=None), spec, generator=generator, statistics=statistics)
        if self.path is not None:
            policy.load_actor(Path(self.path))
        return policy


class MLPPolicy(nn.Module):
    """Gaussian over chunks (K, A) whose mean is a network of the state; see :class:`Config`."""

    state_mean: torch.Tensor
    state_scale: torch.Tensor
    critic_mean: torch.Tensor
    critic_scale: torch.Tensor
    action_mean: torch.Tensor
    action_scale: torch.Tensor
    moments: torch.Tensor
    moments_count: torch.Tensor

    def __init__(
        self, config: Config, spec: PolicySpec, *, generator: np.random.Generator, statistics: Statistics | None
    ) -> None:
        """Make weights from ``generator`` and normalisation from ``statistics`` or limits."""
        super().__init__()
        self.config = config
        self.spec = spec
        self._state_keys = tuple(spec.observation)
        self._critic_keys = tuple(spec.critic_observation)
        self._width = _width(spec.observation)
        steps, action_dim = spec.chunk_steps, spec.action.shape[0]
        source = torch_generator(generator)
        critic_width = self._width + _width(spec.critic_observation)
        self.actor = make_mlp(
            (self._width, *config.hidden, steps * action_dim),
            generator=source,
            activation=config.activation,
            output_gain=0.01,
        )
        self.critic = make_mlp((critic_width, *config.hidden, 1), generator=source, activation=config.activation)
        self._actor_weights = list(self.actor.parameters())
        self._views = Views()
        shape = (steps, action_dim) if config.per_step_std else (1, action_dim)
        self.log_std = nn.Parameter(torch.full(shape, math.log(config.init_std)))
        for name, (mean, scale) in {
            "state": affine_of(self._state_keys, spec.observation, statistics),
            "critic": affine_of(self._critic_keys, spec.critic_observation, statistics),
            "action": affine("action", spec.action, statistics),
        }.items():
            self.register_buffer(f"{name}_mean", torch.from_numpy(mean))
            self.register_buffer(f"{name}_scale", torch.from_numpy(scale))
        self.register_buffer("moments", torch.zeros(2, self._width, dtype=torch.float64))
        self.register_buffer("moments_count", torch.zeros((), dtype=torch.int64))

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Sample chunks (N, K, A); log-prob (N, K) is that of the float32 action that is returned."""
        if self.action_mean.device.type == "cpu":
            *weights, log_std, state_mean, state_scale, centre, scale = self._views.of(self._acting())
            x = _concatenate([np.asarray(observation[key], np.float32) for key in self._state_keys])
            x = ((x - state_mean) / state_scale).clip(-CLIP, CLIP)
            mean = forward_numpy(weights, x, self.config.activation).reshape(len(x), self.spec.chunk_steps, -1)
        else:
            with torch.inference_mode():
                mean = self._mean(observation).cpu().numpy()
                log_std, centre, scale = (i.cpu().numpy() for i in (self.log_std, self.action_mean, self.action_scale))
        if deterministic:
            return ActionSample(mean * scale + centre, np.zeros(mean.shape[:2], np.float32))
        log_std = np.maximum(log_std, np.float32(math.log(self.config.min_std)))
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        chunk = (mean + np.exp(log_std) * noise) * scale + centre
        return ActionSample(chunk, gaussian.log_prob_numpy((chunk - centre) / scale, mean, log_std))

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        """Return log-prob (B, G) of the steps of the stored chunk, and entropy (B,) averaged over executed steps."""
        action = self._normalised(sample.action_chunk)
        steps = action.shape[1]
        log_std = self._log_std(steps)
        log_prob = gaussian.log_prob(action, self._mean(observation)[:, :steps], log_std)
        if not self.config.per_step_std:  # then all steps have the same entropy, and so has any mean of them
            return Evaluation(log_prob, gaussian.entropy(log_std).expand(len(log_prob)))
        mask = executed_mask(executed, steps, action.device)
        return Evaluation(log_prob, gaussian.masked_mean(gaussian.entropy(log_std).expand_as(mask), mask))

    def divergence(
        self, observation: Observation, sample: ActionSample, reference: "MLPPolicy", executed: Any
    ) -> torch.Tensor:
        """Return KL(reference || self) (B,), nats, summed over executed steps; ``reference`` gets no gradient."""
        steps = sample.action_chunk.shape[1]
        scale = self.action_scale / reference.action_scale
        with torch.no_grad():
            # The reference's Gaussian in this policy's normalised units, should the two differ.
            mean = reference._mean(observation)[:, :steps] / scale
            mean = mean + (reference.action_mean - self.action_mean) / self.action_scale
            log_std = reference._log_std(steps) - torch.log(scale)
        kl = gaussian.kl(mean, log_std, self._mean(observation)[:, :steps], self._log_std(steps))
        return (kl * executed_mask(executed, steps, kl.device)).sum(-1)

    def imitation_loss(self, observation: Observation, action_chunk: Any, executed: Any) -> torch.Tensor:
        """Return (B,) mean absolute error of the chunk's mean over executed steps, normalised action units."""
        return gaussian.chunk_error(self._mean(observation), self._normalised(action_chunk), executed)

    def value(self, observation: Observation) -> torch.Tensor:
        """Return V(s), (B,)."""
        value: torch.Tensor = self.critic(self._critic_state(self._state(observation), observation)).squeeze(-1)
        return value

    def hand_gradient(self, observation: Observation, sample: ActionSample) -> MLPGradient | None:
        """Return outputs and gradients without autograd for a batch of tensors; None where some part needs it.

        A subclass may answer otherwise than this class, so it has none.
        """
        parameters = [item for group in self.parameter_groups().values() for item in group]
        if (
            type(self) is not MLPPolicy
            or self.config.per_step_std
            or self.config.activation not in ACTIVATE
            or any(not item.requires_grad or item.device.type != "cpu" for item in parameters)
        ):
            return None
        with torch.no_grad():
            state, action = self._state(observation), self._normalised(sample.action_chunk)
            inputs = (state, self._critic_state(state, observation))
        networks, minimum = (self.actor, self.critic), math.log(self.config.min_std)
        return MLPGradient(networks, self.config.activation, inputs, action, self.log_std, minimum)

    def update_normalisation(self, observation: Observation) -> None:
        """Move the running moments by a batch (B, D); call between iterations only, or stored log-probs go stale.

        Does nothing unless ``running_normalisation`` is set.
        """
        if not self.config.running_normalisation:
            return
        running = RunningMoments(self._width)
        running.count = int(self.moments_count)
        running.mean, running.variance = self.moments.cpu().numpy()
        running.update(np.concatenate([np.asarray(observation[key]) for key in self._state_keys], -1))
        self.moments.copy_(torch.from_numpy(np.stack((running.mean, running.variance))))
        self.moments_count.fill_(running.count)
        self.state_mean.copy_(self.moments[0])
        self.state_scale.copy_(self.moments[1].sqrt().clamp_min(1e-2))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return actor (with the log-std) and critic parameters."""
        return {"actor": [*self.actor.parameters(), self.log_std], "critic": list(self.critic.parameters())}

    def clone(self) -> "MLPPolicy":
        """Return a frozen deep copy."""
        twin = copy.deepcopy(self)
        twin.requires_grad_(False)
        return twin

    def normalisation(self) -> dict[str, Any]:
        """Return mean and scale of state, critic extras and action."""
        return {
            name: {part: getattr(self, f"{name}_{part}").tolist() for part in ("mean", "scale")}
            for name in ("state", "critic", "action")
        }

    def save(self, directory: Path) -> None:
        """Write ``config.json`` and ``model.safetensors``."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {key: item.detach().cpu().contiguous() for key, item in self.state_dict().items()}
        save_file(state, directory / "model.safetensors")
        description = {
            "policy": "mlp",
            "config": to_plain(self.config),
            "spec": to_json(self.spec),
            "normalisation": fingerprint(self.normalisation()),
        }
        (directory / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote; the policy must have been built with the same Config."""
        description, state = _read(directory)
        stored = from_plain(Config, description["config"], f"{directory}/config.json")
        if stored != self.config:
            raise CheckpointError(
                f"'{directory}' holds an mlp policy with {stored}, but this one was built with {self.config}. "
                "Build it with the stored configuration, or start from its actor with policy.path."
            )
        self._set(state, directory)
        if fingerprint(self.normalisation()) != description["normalisation"]:
            raise CheckpointError(f"The normalisation in '{directory}' is not the one that was saved; it was changed.")

    def load_actor(self, directory: Path) -> None:
        """Read the actor and the normalisation from what :meth:`save` wrote; log-std and critic stay as they are.

        Raises:
            CheckpointError: If the actor reads other keys, or has other sizes.
        """
        description, state = _read(directory)
        found, wanted = list(description["spec"]["observation"]), list(self._state_keys)
        if found != wanted:
            raise CheckpointError(f"The actor in '{directory}' reads {found}, but this one was built to read {wanted}.")
        kept = {key: item for key, item in self.state_dict().items() if not key.startswith(ACTOR_PREFIXES)}
        self._set({**{key: item for key, item in state.items() if key.startswith(ACTOR_PREFIXES)}, **kept}, directory)

    def _set(self, state: Mapping[str, torch.Tensor], directory: Path) -> None:
        try:
            self.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"The weights in '{directory}' do not fit this policy: {error}.") from error

    def export_module(self) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
        """Return (module, example inputs, input names): raw vectors (1, D) to the most likely chunk (1, K, A)."""
        module = ObservationModule(
            self, self._state_keys, lambda observation: self._mean(observation) * self.action_scale + self.action_mean
        )
        examples = tuple(torch.zeros(1, *item.shape) for item in self.spec.observation.values())
        return module, examples, self._state_keys

    def _mean(self, observation: Observation) -> torch.Tensor:
        mean: torch.Tensor = self.actor(self._state(observation))
        return mean.view(len(mean), self.spec.chunk_steps, -1)

    def _acting(self) -> list[torch.Tensor]:
        normalisation = (self.state_mean, self.state_scale, self.action_mean, self.action_scale)
        return [*self._actor_weights, self.log_std, *normalisation]

    def _state(self, observation: Observation) -> torch.Tensor:
        x = self._gather(observation, self._state_keys)
        return ((x - self.state_mean) / self.state_scale).clamp(-CLIP, CLIP)

    def _critic_state(self, state: torch.Tensor, observation: Observation) -> torch.Tensor:
        if not self._critic_keys:
            return state
        extra = self._gather(observation, self._critic_keys)
        return torch.cat((state, ((extra - self.critic_mean) / self.critic_scale).clamp(-CLIP, CLIP)), -1)

    def _gather(self, observation: Mapping[str, Any], keys: tuple[str, ...]) -> torch.Tensor:
        parts = [as_tensor(observation[key], self.action_mean) for key in keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _log_std(self, steps: int) -> torch.Tensor:
        log_std = self.log_std.clamp_min(math.log(self.config.min_std))
        return log_std[:steps] if self.config.per_step_std else log_std

    def _normalised(self, action_chunk: Any) -> torch.Tensor:
        return (as_tensor(action_chunk, self.action_mean) - self.action_mean) / self.action_scale


def _width(specs: Mapping[str, ArraySpec]) -> int:
    return sum(spec.shape[0] for spec in specs.values())


def _concatenate(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, -1)


def _read(directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        description = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        state = load_file(directory / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"Cannot read the mlp policy in '{directory}': {error}.") from error
    if description.get("policy") != "mlp":
        raise CheckpointError(f"'{directory}' holds a policy of kind {description.get('policy')!r}, not 'mlp'.")
    return description, state
