"""The protocols that components implement and flows call; nothing here knows a task or an algorithm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from burnish.core.inpainting import Prefix
from burnish.core.spec import Array, EnvSpec, Observation, PolicySpec
from burnish.core.step import ActionSample, Evaluation, Start, Step

if TYPE_CHECKING:
    import torch

    from burnish.data.rollout import Batch, Rollout


@runtime_checkable
class VecEnv(Protocol):
    """N environments of one kind, stepped a chunk at a time, never reset by themselves."""

    spec: EnvSpec
    num_envs: int

    def reset(self, starts: Sequence[Start], where: Array | None = None) -> Observation:
        """Begin new episodes.

        Args:
            starts: One Start for each environment that is reset, in order.
            where: (n,) int64 indices of those environments; None for all N.

        Returns:
            Observation of all N environments (those not reset keep their last one).
        """
        ...

    def step(self, action_chunk: Array) -> Step:
        """Execute up to K actions, action_chunk (N, K, A); an ended environment executes none.

        What is observed depends on the Start and the actions executed, not on how they were cut into chunks.
        """
        ...

    def close(self) -> None:
        """Free processes, threads and rendering contexts; may be called twice."""
        ...


@runtime_checkable
class Renderable(Protocol):
    """An environment that can show itself to a person."""

    def render(self, index: int) -> Array:
        """Return an (H, W, 3) uint8 picture of environment ``index`` as it is now."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Observation to action chunk, with log-probabilities. ``evaluate`` and the losses return torch tensors."""

    spec: PolicySpec

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Sample chunks (N, K, A); all randomness comes from ``generator``. Returns numpy arrays."""
        ...

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        """Return log-prob and entropy of stored samples under the current parameters, differentiable."""
        ...

    def divergence(self, observation: Observation, sample: ActionSample, reference: Any, executed: Any) -> Any:
        """Return (B,) KL(reference || self), summed over executed actions; ``reference`` is of the same family."""
        ...

    def imitation_loss(self, observation: Observation, action_chunk: Any, executed: Any) -> Any:
        """Return (B,) loss of imitating a chunk (B, K, A), over its first ``executed`` (B,) actions."""
        ...


@runtime_checkable
class InpaintingPolicy(Protocol):
    """A policy whose chunk can go on from actions that are planned already: real-time chunking of flow policies."""

    spec: PolicySpec

    def act_with_prefix(
        self, observation: Observation, prefix: Prefix, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Sample a chunk (1, K, A) for one observation whose first P actions follow ``prefix``.

        The prefix is in the env's units; a policy whose flow is normalised normalises it first, and leaves what is not
        planned out instead of padding it. :func:`burnish.core.inpainting.denoise` does the rest; a policy that was
        trained on prefixes may read them directly.
        """
        ...


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy that the trainer can optimise, save and restore."""

    def parameter_groups(self) -> "dict[str, list[torch.nn.Parameter]]":
        """Return trainable parameters by role: ``actor``, ``critic``, and others that a recipe may give a rate."""
        ...

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """Return all weights and buffers by name."""
        ...

    def load_state_dict(self, state: "Mapping[str, torch.Tensor]") -> Any:
        """Set all weights and buffers."""
        ...

    def clone(self) -> "TrainablePolicy":
        """Return a frozen deep copy, for a reference or the previous policy."""
        ...

    def normalisation(self) -> dict[str, Any]:
        """Return the normalisation statistics as JSON values; their fingerprint travels with a checkpoint."""
        ...

    def save(self, directory: Path) -> None:
        """Write the policy into an empty folder (safetensors and JSON only)."""
        ...

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointError: If a file is missing, damaged, or of other shapes.
        """
        ...


@runtime_checkable
class ValuePolicy(TrainablePolicy, Protocol):
    """A policy that carries a critic."""

    def value(self, observation: Observation) -> Any:
        """Return V(s) as a (B,) float32 tensor, differentiable."""
        ...


@runtime_checkable
class CachingPolicy(TrainablePolicy, Protocol):
    """A policy whose frozen front part can be computed once per rollout instead of once per minibatch."""

    def precompute(self, observation: Observation) -> Observation:
        """Return the observation with frozen features added under ``features.*`` and what they replace removed."""
        ...


@dataclass(frozen=True)
class Outputs:
    """What objectives look at, outside of autograd: numpy arrays of B decisions."""

    log_prob: Array
    """(B, G) float32."""
    entropy: Array
    """(B,) float32, as in Evaluation."""
    value: Array
    """(B,) float32, V(s)."""


class HandGradient(Protocol):
    """Outputs of a policy on one batch, and their gradients by hand, where autograd's bookkeeping costs the most."""

    def forward(self, rows: Array) -> Outputs:
        """Return the outputs for some rows of the batch, under the weights of now."""
        ...

    def backward(self, log_prob: Array | None, entropy: Array | None, value: Array | None) -> None:
        """Set the ``grad`` of all parameters, from the loss's gradients in the outputs of the last ``forward``.

        None is a gradient of zero.
        """
        ...


@runtime_checkable
class HandGradientPolicy(TrainablePolicy, Protocol):
    """A policy that may know its own gradients."""

    def hand_gradient(self, observation: Observation, sample: ActionSample) -> HandGradient | None:
        """Return them for a batch (tensors), which stays as it is; None where only autograd can."""
        ...


@runtime_checkable
class NormalisingPolicy(TrainablePolicy, Protocol):
    """A policy whose observation normalisation follows the data it sees."""

    def update_normalisation(self, observation: Observation) -> None:
        """Take in a rollout's observations (B, ...); called after an update, so that log-probs of a rollout hold."""
        ...


@runtime_checkable
class Teacher(Protocol):
    """An expert that may see privileged observations; labels states and records demonstrations, never deployed."""

    spec_id: str
    observation_keys: tuple[str, ...]

    def act(self, observation: Observation, *, generator: np.random.Generator) -> Array:
        """Return action chunks (N, K, A) in the env's units, from the observation alone."""
        ...


@runtime_checkable
class WorldModel(Protocol):
    """Learned dynamics over a latent state, behind ``envs/imagined``."""

    def observe(self, observation: Observation, action_chunk: Any, executed: Any) -> Any:
        """Return the latent after observing one more chunk."""
        ...

    def imagine(self, latent: Any, action_chunk: Any) -> Any:
        """Return (next latent, reward (B, K), continuation probability (B,))."""
        ...

    def decode(self, latent: Any) -> Observation:
        """Return the observation that a latent stands for."""
        ...


@dataclass(frozen=True)
class EpisodeSummary:
    """What a sampler and a log learn about one finished episode."""

    start: Start
    length: int
    """Executed actions."""
    return_: float
    """Undiscounted sum of rewards."""
    success: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


class Sampler(Protocol):
    """Decides what runs next."""

    def next(self, count: int) -> list[Start]:
        """Return the next ``count`` Starts."""
        ...

    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Learn how earlier Starts went."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all mutable state as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        ...


class Labeler(Protocol):
    """Decides what experience is worth."""

    def label(self, rollout: "Rollout", policy: TrainablePolicy, reference: TrainablePolicy) -> "Rollout":
        """Return the rollout with rewards, advantages, returns or weights set; ``reference`` is the pretrained one."""
        ...


class Objective(Protocol):
    """A loss over a minibatch."""

    name: str
    coefficient: float

    def loss(
        self,
        policy: TrainablePolicy,
        batch: "Batch",
        *,
        previous: TrainablePolicy,
        reference: TrainablePolicy,
    ) -> "tuple[torch.Tensor, dict[str, float]]":
        """Return (scalar loss, metrics). ``previous`` is the policy at the start of this update."""
        ...


@dataclass(frozen=True)
class Decision:
    """What a controller wants."""

    action: Literal["go_on", "stop_epochs", "revert", "stop"] = "go_on"
    """"stop_epochs" ends this iteration's update, "revert" also undoes it, "stop" ends the run."""
    learning_rate_factor: float = 1.0
    """Multiplies the learning rate."""
    coefficients: Mapping[str, float] = field(default_factory=dict)
    """New coefficients of objectives, by name."""
    reason: str = ""


class Controller(Protocol):
    """Watches the run and adapts it or stops it."""

    def after(self, moment: Literal["epoch", "iteration"], metrics: Mapping[str, float]) -> Decision:
        """Decide after an epoch of an update, or after a whole iteration."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all mutable state as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        ...


def select(observation: Observation, keys: Iterable[str]) -> Observation:
    """Return the named entries of an observation, in order."""
    return {key: observation[key] for key in keys}
