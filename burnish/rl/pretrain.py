"""Behaviour cloning: a policy imitates recorded chunks; features of a frozen front part are computed once."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from burnish.core.contracts import CachingPolicy, TrainablePolicy
from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import restore_generator, save_generator, stream
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.data.rollout import to_tensors
from burnish.rl.checkpoint import last_checkpoint, load_policy, load_training, save_run_checkpoint
from burnish.rl.log import RunLog
from burnish.rl.update import Optimiser

BLOCK = 256
"""Frames whose features are computed at once."""
SCRATCH_PREFIX = ".features-"
MEMORY_BYTES = 1 << 30
"""Cached features above this go to a file in the run folder instead of memory."""


class Demonstrations(Protocol):
    """What is imitated; :class:`burnish.data.dataset.DemonstrationDataset` is one."""

    episode_bounds: Array
    """(E, 2) int64, first frame of each episode and the one after its last."""

    def __len__(self) -> int:
        """Return the number of frames."""
        ...

    def observation(self, index: Array, keys: Sequence[str] | None = None) -> Observation:
        """Return observations (B, ...) at frames (B,)."""
        ...

    def chunks(
        self, index: Array, chunk_steps: int, keys: Sequence[str] | None = None
    ) -> tuple[Observation, Array, Array]:
        """Return (observation (B, ...), action chunk (B, K, A), executed (B,)) at frames (B,)."""
        ...


@dataclass(frozen=True)
class PretrainNumbers:
    """Numbers of behaviour cloning."""

    steps: int = 5000
    """Gradient steps."""
    minibatch_size: int = 256
    """Frames per step, drawn with replacement."""
    learning_rate: float = 1e-3
    """Of the actor."""
    learning_rate_backbone: float = 1e-4
    """Of the image backbone, where the policy has one that is not frozen."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """"linear" falls to 0 at the last step."""
    weight_decay: float = 1e-4
    """AdamW's."""
    max_grad_norm: float = 10.0
    """Limit of the gradient norm; 0 for none."""
    validation_share: float = 0.05
    """Share of episodes that are held out to measure the loss; 0 for none."""
    log_every: int = 100
    """Steps between rows of the log."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 for all."""
    seed: int = 0
    """Root of the run's random streams."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("steps", "minibatch_size", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pretrain: {name} must be at least 1, found {getattr(self, name)}.")
        if self.seed < 0:
            raise ConfigError(f"pretrain: seed must not be negative, found {self.seed}.")
        if not 0 <= self.validation_share < 1:
            raise ConfigError(f"pretrain: validation_share must be in [0, 1), found {self.validation_share}.")


@dataclass(frozen=True)
class PretrainResult:
    """How pretraining ended."""

    steps: int
    checkpoint: Path
    metrics: dict[str, float]
    """Of the last row of the log."""


def pretrain(
    policy: TrainablePolicy,
    dataset: Demonstrations,
    numbers: PretrainNumbers,
    *,
    run: Path,
    description: Mapping[str, Any] | None = None,
    resume: bool = False,
    report: Callable[[Mapping[str, float]], None] | None = None,
) -> PretrainResult:
    """Train a policy in place to imitate demonstrations.

    Where the policy has a frozen front part, its features are computed once for the whole dataset. A resumed run goes
    on bit for bit as the uninterrupted one (on CPU).

    Args:
        policy: Trained in place; normalisation is the one it was built with.
        dataset: Demonstrations.
        numbers: Everything else.
        run: Run folder: ``metrics.jsonl``, ``tensorboard/`` and ``checkpoints/<step>/``.
        description: JSON values for ``burnish.json`` of every checkpoint.
        resume: Go on from the newest checkpoint of ``run``, or begin where there is none.
        report: Receives each row of the log; ``iteration`` is the step.

    Raises:
        ConfigError: If the run folder holds a run that is not resumed, or other numbers than it was begun with.
        CheckError: If the loss is not finite.
    """
    progress = _Progress(policy, numbers, run, description or {})
    progress.open(resume)
    train_frames, validation_frames = _split(dataset, numbers)
    log = RunLog(run, after=progress.step)
    metrics: dict[str, float] = {}
    started, losses = time.monotonic(), []
    for leftover in run.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=run, prefix=SCRATCH_PREFIX) as scratch:
        source = _Source(policy, dataset, Path(scratch))
        try:
            while progress.step < numbers.steps:
                chosen = progress.generator.integers(len(train_frames), size=numbers.minibatch_size)
                loss = source.loss(train_frames[chosen]).mean()
                losses.append(loss.detach())
                norms = progress.descend(loss)
                if progress.due(numbers.log_every):
                    metrics = {
                        "iteration": float(progress.step),
                        "loss": _finite(float(torch.stack(losses).mean()), progress.step),
                        **source.validate(validation_frames),
                        **norms,
                        "seconds": time.monotonic() - started,
                    }
                    losses = []
                    log.write(metrics)
                    if report is not None:
                        report(metrics)
                if progress.due(numbers.checkpoint_every):
                    progress.save()
        finally:
            log.close()
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    return PretrainResult(progress.step, checkpoint, metrics)


class _Progress:
    """What a checkpoint holds: the policy, the optimiser, the random stream and the step."""

    def __init__(
        self, policy: TrainablePolicy, numbers: PretrainNumbers, run: Path, description: Mapping[str, Any]
    ) -> None:
        self._policy, self._numbers, self._run, self._description = policy, numbers, run, description
        rates = {"actor": numbers.learning_rate, "backbone": numbers.learning_rate_backbone}
        groups = policy.parameter_groups()
        self._optimiser = Optimiser(
            policy,
            {role: rate for role, rate in rates.items() if role in groups},
            epsilon=1e-8,
            weight_decay=numbers.weight_decay,
        )
        self.generator = stream(numbers.seed, "pretrain")
        self.step = 0

    def open(self, resume: bool) -> None:
        """Go on from the newest checkpoint, or begin where there is none."""
        checkpoint = last_checkpoint(self._run)
        if checkpoint is None:
            return
        if not resume:
            raise ConfigError(f"{self._run} already holds a run. Resume it, or choose another folder.")
        state = load_training(checkpoint)
        _check_numbers(self._numbers, state["numbers"], self._run)
        load_policy(checkpoint, self._policy)
        self._optimiser.load_state_dict(state["optimiser"])
        self.generator, self.step = restore_generator(state["generator"]), state["step"]

    def descend(self, loss: torch.Tensor) -> dict[str, float]:
        """Make one gradient step and return the gradient norms."""
        if self._numbers.learning_rate_schedule == "linear":
            self._optimiser.set_factor(1 - self.step / self._numbers.steps)
        self._optimiser.adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step += 1
        return self._optimiser.step(self._numbers.max_grad_norm)

    def due(self, every: int) -> bool:
        """Return whether this is one of every so many steps, or the last one."""
        return self.step % every == 0 or self.step == self._numbers.steps

    def save(self) -> None:
        """Write a checkpoint."""
        training = {
            "step": self.step,
            "numbers": asdict(self._numbers),
            "optimiser": self._optimiser.state_dict(),
            "generator": save_generator(self.generator),
        }
        save_run_checkpoint(
            self._run,
            self.step,
            self._policy,
            description=self._description,
            training=training,
            keep=self._numbers.keep_checkpoints,
        )


class _Source:
    """Minibatches of a dataset for one policy, with frozen features in place of what they come from."""

    def __init__(self, policy: TrainablePolicy, dataset: Demonstrations, scratch: Path) -> None:
        self._policy, self._dataset = policy, dataset
        self._keys = tuple(policy.spec.observation)
        self._columns: dict[str, Array] | None = None
        self._task: list[str] = []
        if isinstance(policy, CachingPolicy):
            self._cache(policy, scratch)

    def loss(self, index: Array) -> torch.Tensor:
        """Return the imitation loss (B,) at frames (B,)."""
        observation, chunk, executed = self._minibatch(index)
        loss: torch.Tensor = self._policy.imitation_loss(
            to_tensors(observation), torch.from_numpy(chunk), torch.from_numpy(executed)
        )
        return loss

    def validate(self, index: Array) -> dict[str, float]:
        """Return the mean loss over held-out frames, where there are any."""
        if not len(index):
            return {}
        with torch.no_grad():
            parts = [self.loss(index[i : i + BLOCK]) for i in range(0, len(index), BLOCK)]
        return {"loss/validation": float(torch.cat(parts).mean())}

    def _minibatch(self, index: Array) -> tuple[Observation, Array, Array]:
        if self._columns is None:
            return self._dataset.chunks(index, self._policy.spec.chunk_steps, self._keys)
        _, chunk, executed = self._dataset.chunks(index, self._policy.spec.chunk_steps, ())
        observation: Observation = {key: column[index] for key, column in self._columns.items()}
        return {**observation, TASK_KEY: [self._task[i] for i in index]}, chunk, executed

    def _cache(self, policy: CachingPolicy, scratch: Path) -> None:
        frames = len(self._dataset)
        for begin in range(0, frames, BLOCK):
            index = np.arange(begin, min(begin + BLOCK, frames))
            raw = self._dataset.observation(index, self._keys)
            features = policy.precompute(raw)
            if features is raw:
                return
            if self._columns is None:
                arrays = {key: item for key, item in features.items() if isinstance(item, np.ndarray)}
                self._columns = {key: _column(scratch, i, item, frames) for i, (key, item) in enumerate(arrays.items())}
            for key, column in self._columns.items():
                column[index] = features[key]
            self._task += features[TASK_KEY]


def _column(scratch: Path, number: int, sample: Array, frames: int) -> Array:
    """Return an empty array for all frames of what ``sample`` (B, ...) is part of, in memory or in a file."""
    shape = (frames, *sample.shape[1:])
    if sample[0].nbytes * frames <= MEMORY_BYTES:
        return np.empty(shape, sample.dtype)
    return np.memmap(scratch / f"{number}.bin", mode="w+", dtype=sample.dtype, shape=shape)


def _split(dataset: Demonstrations, numbers: PretrainNumbers) -> tuple[Array, Array]:
    """Return frames to train on and frames held out, whole episodes each."""
    bounds = np.asarray(dataset.episode_bounds)
    if not len(dataset):
        raise ConfigError("pretrain: the dataset has no frames.")
    held = round(numbers.validation_share * len(bounds)) if len(bounds) > 1 else 0
    order = stream(numbers.seed, "validation").permutation(len(bounds))

    def frames(episodes: Array) -> Array:
        parts = [np.arange(begin, end) for begin, end in bounds[np.sort(episodes)].tolist()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    return frames(order[held:]), frames(order[:held])


def _check_numbers(numbers: PretrainNumbers, stored: Mapping[str, Any], run: Path) -> None:
    may_change = {"log_every", "checkpoint_every", "keep_checkpoints"}
    differing = [
        f"{name} is {value}, was {stored.get(name)}"
        for name, value in asdict(numbers).items()
        if name not in may_change and stored.get(name) != value
    ]
    if differing:
        raise ConfigError(f"{run} was begun with other numbers: {'; '.join(differing)}. Use those, or begin anew.")


def _finite(loss: float, step: int) -> float:
    if not np.isfinite(loss):
        raise CheckError(f"The imitation loss is {loss} at step {step}. Lower the learning rate, or look at the data.")
    return loss
