"""The contract of trainable policies, as checks that a component passes or fails with a sentence."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.core.conformity import (
    Check,
    copy_of,
    difference,
    draw,
    draw_observation,
    expect,
    expect_array,
    rows_of,
    run_checks,
)
from burnish.core.contracts import CachingPolicy, TrainablePolicy, ValuePolicy
from burnish.core.errors import CheckError, CheckpointError
from burnish.core.seeding import stream
from burnish.core.spec import PRIVILEGED_PREFIX, EnvSpec, Observation, PolicySpec, check_fit, fingerprint
from burnish.core.step import ActionSample
from burnish.data.rollout import to_tensors
from burnish.rl.weights import arrays_of, nudge

ROWS = 5
"""Observations that are tried at once."""
RATIO_TOLERANCE = 1e-4
"""How far the ratio of one decision may be from 1 before any update."""
SAVED_SUFFIXES = (".safetensors", ".json", ".jsonl", ".txt", ".md", ".model")
"""What a saved policy may consist of; a pickle runs code when it is read."""


def check_policy(policy: TrainablePolicy, env_spec: EnvSpec, *, seed: int = 0) -> list[str]:
    """Check that a policy keeps :class:`burnish.core.contracts.TrainablePolicy`.

    Args:
        policy: What is checked; has the same weights afterwards.
        env_spec: An environment that it was built for; observations are drawn from its spec.
        seed: Of observations and noise.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails; says what was found and what was expected.
    """
    checks = _Checks(policy, env_spec, seed)
    return run_checks(f"Policy '{getattr(getattr(policy, 'spec', None), 'id', type(policy).__name__)}'", checks.all())


@dataclass
class _Checks:
    policy: TrainablePolicy
    env_spec: EnvSpec
    seed: int

    def all(self) -> dict[str, Check]:
        """Return the checks in the order in which they run: what later ones take for granted comes first."""
        checks = {
            "spec": self.spec,
            "act": self.act,
            "purity": self.purity,
            "generator": self.generator,
            "deterministic": self.deterministic,
            "privileged": self.privileged,
            "rows": self.rows,
            "evaluate": self.evaluate,
            "parity": self.parity,
            "gradient": self.gradient,
            "executed": self.executed,
            "clone": self.clone,
            "divergence": self.divergence,
            "divergence executed": self.divergence_executed,
            "normalisation": self.normalisation,
            "save and load": self.save_and_load,
            "damaged checkpoint": self.damaged_checkpoint,
        }
        if isinstance(self.policy, ValuePolicy):
            checks["value"] = self.value
        if isinstance(self.policy, CachingPolicy):
            checks["precompute"] = self.precompute
        return checks

    # -- acting -----------------------------------------------------------------------------------------------------

    def spec(self) -> None:
        """The policy has the methods of the contract, a spec that fits the environment, and parameters by role."""
        spec = self.policy.spec
        expect(isinstance(spec, PolicySpec), f"spec must be a PolicySpec, found {type(spec).__name__}.")
        missing = [name for name in _METHODS if not callable(getattr(self.policy, name, None))]
        expect(not missing, f"a TrainablePolicy needs {', '.join(missing)}.")
        check_fit(spec, self.env_spec)
        groups = self.policy.parameter_groups()
        expect("actor" in groups, f"parameter_groups() must have 'actor'; it has {sorted(groups)}.")
        flat = [parameter for group in groups.values() for parameter in group]
        expect(len({id(item) for item in flat}) == len(flat), "parameter_groups() lists a parameter twice.")
        expect(all(item.requires_grad for item in flat), "parameter_groups() lists a parameter without requires_grad.")

    def act(self) -> None:
        """A sample is made of finite numpy arrays with the shapes of the contract."""
        sample = self._sample()
        expect(isinstance(sample, ActionSample), f"act() returned {type(sample).__name__}, not an ActionSample.")
        steps, entries = self.policy.spec.chunk_steps, self.policy.spec.action.shape[0]
        expect_array(sample.action_chunk, "action_chunk", shape=(ROWS, steps, entries), dtype="float32")
        shape = getattr(sample.log_prob, "shape", (0, 0))
        expect(len(shape) == 2 and shape[1] in (1, steps), f"log_prob has shape {shape}, expected (N, 1) or (N, K).")
        expect_array(sample.log_prob, "log_prob", shape=(ROWS, shape[1]), dtype="float32")
        for key, item in sample.trace.items():
            good = isinstance(item, np.ndarray) and item.shape[:1] == (ROWS,)
            expect(good, f"trace['{key}'] must be an array with leading axis N = {ROWS}.")

    def generator(self) -> None:
        """All randomness comes from the generator, and none from global ones."""
        before = _global_random_state()
        one, same, other = self._sample(), self._sample(), self._sample(salt=1)
        expect(before == _global_random_state(), "act() draws from numpy's or torch's global generator.")
        text = difference(_parts(one), _parts(same), "sample")
        expect(not text, f"the same generator gives another sample: {text}.")
        changed = difference(one.action_chunk, other.action_chunk)
        expect(bool(changed), "another generator gives the same chunk; without noise there is nothing to explore.")

    def deterministic(self) -> None:
        """With deterministic=True the generator has no influence, and the log-probs are zeros."""
        one, other = (self._sample(salt=salt, deterministic=True) for salt in (0, 1))
        text = difference(one.action_chunk, other.action_chunk, "action_chunk")
        expect(not text, f"deterministic answers depend on the generator: {text}.")
        expect(not np.any(one.log_prob), "log_prob of a deterministic answer must be zeros.")

    def privileged(self) -> None:
        """The acting part needs and reads public entries only."""
        full = self._observation()
        public = {key: item for key, item in full.items() if not key.startswith(PRIVILEGED_PREFIX)}
        changed = copy_of(full)
        for key, item in self.env_spec.observation.items():
            if key.startswith(PRIVILEGED_PREFIX):
                changed[key] = draw(item, (ROWS,), stream(self.seed, "check_policy", "other"))
        sample = self._sample(full)
        try:
            alone = self._sample(public)
        except KeyError as error:
            raise CheckError(f"act() asks for the privileged entry {error}, which a robot does not have.") from error
        for other, problem in ((alone, "are there"), (changed, "change")):
            found = other if isinstance(other, ActionSample) else self._sample(other)
            text = difference(_parts(sample), _parts(found), "sample")
            expect(not text, f"the answer depends on whether privileged entries {problem}: {text}.")

    def purity(self) -> None:
        """Acting and evaluating change neither the observation nor the policy."""
        observation, state = self._observation(), copy_of(arrays_of(self.policy))
        given = copy_of(observation)
        sample = self._sample(given)
        stored = copy_of(_parts(sample))
        self._evaluate(given, sample)
        for name, before, after in (
            ("the observation", observation, given),
            ("the sample", stored, _parts(sample)),
            ("its own weights or buffers", state, arrays_of(self.policy)),
        ):
            text = difference(before, after)
            expect(not text, f"acting and evaluating change {name}: {text}.")

    def rows(self) -> None:
        """A row of a batch gets the same answer alone."""
        observation = self._observation()
        together = self._sample(observation, deterministic=True).action_chunk
        alone = self._sample(rows_of(observation, [ROWS - 1]), deterministic=True).action_chunk[0]
        error = float(np.abs(together[-1] - alone).max()) / max(1.0, float(np.abs(alone).max()))
        expect(error < 1e-4, f"a row of a batch gets another answer than alone, by {error:.3g}.")

    # -- learning ---------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Log-probs have the shape that they had when acting, entropies (B,); all are finite."""
        sample = self._sample()
        evaluation = self._evaluate(self._observation(), sample)
        found = tuple(evaluation.log_prob.shape)
        expect(found == sample.log_prob.shape, f"log_prob is {found} in evaluate and {sample.log_prob.shape} in act.")
        shape = tuple(evaluation.entropy.shape)
        expect(shape == (ROWS,), f"entropy has shape {shape}, expected {(ROWS,)}.")
        for name in ("log_prob", "entropy"):
            expect(bool(torch.isfinite(getattr(evaluation, name)).all()), f"{name} of evaluate() is not finite.")

    def parity(self) -> None:
        """Before any update, evaluate() gives the log-probs that act() gave."""
        sample = self._sample()
        log_prob = self._evaluate(self._observation(), sample).log_prob.detach().cpu().numpy()
        error = float(np.abs(np.expm1((log_prob - sample.log_prob).sum(1, dtype=float))).max())
        worst = float(np.abs(log_prob - sample.log_prob).max())
        expect(
            error <= RATIO_TOLERANCE,
            f"log-probs of act() and evaluate() differ by up to {worst:.3g}, so the ratio of a decision is off by "
            f"{error:.3g} (allowed {RATIO_TOLERANCE:g}).",
        )

    def gradient(self) -> None:
        """Log-prob and imitation loss are differentiable in the actor's parameters."""
        observation, sample = to_tensors(self._observation()), self._sample()
        every = self._executed(self.policy.spec.chunk_steps)
        losses = {
            "log_prob of evaluate()": self._evaluate(observation, sample).log_prob.sum(),
            "imitation_loss": self.policy.imitation_loss(observation, self._other_chunk(), every).sum(),
        }
        for name, loss in losses.items():
            expect(bool(loss.requires_grad), f"{name} is not differentiable.")
            expect(_has_gradient(loss, self.policy), f"{name} has no gradient in the actor's parameters.")

    def executed(self) -> None:
        """Losses are over the first ``executed`` actions only, and over all of them."""
        steps = self.policy.spec.chunk_steps
        observation, chunk = to_tensors(self._observation()), self._other_chunk()
        loss = self.policy.imitation_loss(observation, chunk, self._executed(1)).detach()
        expect(tuple(loss.shape) == (ROWS,), f"imitation_loss has shape {tuple(loss.shape)}, expected {(ROWS,)}.")
        first = chunk.clone()
        first[:, 0] += 0.5
        changed = self.policy.imitation_loss(observation, first, self._executed(1)).detach()
        expect(not torch.equal(loss, changed), "imitation_loss does not depend on the executed action.")
        if steps == 1:
            return
        past = chunk.clone()
        past[:, 1:] += 3.0
        changed = self.policy.imitation_loss(observation, past, self._executed(1)).detach()
        expect(torch.allclose(loss, changed, rtol=1e-4), "imitation_loss depends on actions past `executed`.")
        whole = self.policy.imitation_loss(observation, chunk, self._executed(steps)).detach()
        changed = self.policy.imitation_loss(observation, past, self._executed(steps)).detach()
        expect(not torch.allclose(whole, changed), "imitation_loss ignores executed actions after the first.")

    def clone(self) -> None:
        """A clone is frozen and independent."""
        twin = self.policy.clone()
        text = difference(arrays_of(self.policy), arrays_of(twin))
        expect(not text, f"a clone has other weights: {text}.")
        trainable = [item for group in twin.parameter_groups().values() for item in group if item.requires_grad]
        expect(not trainable, "parameters of a clone must not require gradients.")
        before = copy_of(arrays_of(self.policy))
        nudge(twin, self.policy, stream(self.seed, "check_policy", "nudge"))
        text = difference(before, arrays_of(self.policy))
        expect(not text, f"changing a clone changes the policy: {text}.")

    def divergence(self) -> None:
        """The divergence is zero to an equal policy, positive and differentiable to another one."""
        equal = self._divergence(self.policy.clone()).detach()
        expect(tuple(equal.shape) == (ROWS,), f"divergence has shape {tuple(equal.shape)}, expected {(ROWS,)}.")
        worst = float(equal.abs().max())
        expect(worst < 1e-4, f"the divergence to an equal policy is {worst:.3g}, expected 0.")
        found = self._divergence(self._neighbour())
        low = float(found.detach().min())
        expect(low > -1e-5, f"the divergence to another policy is {low:.3g}, below 0.")
        expect(float(found.detach().max()) > 0.0, "the divergence to another policy is 0.")
        differentiable = bool(found.requires_grad) and _has_gradient(found.sum(), self.policy)
        expect(differentiable, "the divergence has no gradient, so a coefficient would do nothing.")

    def divergence_executed(self) -> None:
        """The divergence is summed over executed actions."""
        steps, other = self.policy.spec.chunk_steps, self._neighbour()
        if steps == 1 or self._sample().log_prob.shape[1] == 1:
            return  # the divergence of a family that does not factorise over time is that of the whole chunk
        one, all_ = (self._divergence(other, count).detach() for count in (1, steps))
        expect(bool((one < all_).all()), f"the divergence over 1 action is not below that over {steps}.")

    def normalisation(self) -> None:
        """Normalisation statistics are JSON values."""
        try:
            json.dumps(self.policy.normalisation(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckError(f"normalisation() must be finite JSON values: {error}.") from error

    def save_and_load(self) -> None:
        """What is saved and loaded acts the same, and holds no pickle."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "policy"
            folder.mkdir()
            self.policy.save(folder)
            files = [path for path in folder.rglob("*") if path.is_file()]
            expect(bool(files), "save() wrote nothing.")
            odd = sorted(path.name for path in files if path.suffix not in SAVED_SUFFIXES)
            expect(not odd, f"save() wrote {odd}; only safetensors and JSON may be written.")
            other = self._neighbour()
            other.load(folder)
        text = difference(arrays_of(self.policy), arrays_of(other))
        expect(not text, f"weights differ after saving and loading: {text}.")
        prints = [fingerprint(item.normalisation()) for item in (self.policy, other)]
        expect(prints[0] == prints[1], "the normalisation differs after saving and loading.")
        text = difference(_parts(self._sample()), _parts(self._sample(policy=other)), "sample")
        expect(not text, f"the answer differs after saving and loading: {text}.")

    def damaged_checkpoint(self) -> None:
        """Loading an empty folder is refused with a CheckpointError."""
        with tempfile.TemporaryDirectory() as name:
            try:
                self.policy.clone().load(Path(name))
            except CheckpointError:
                return
            except Exception as error:
                raise CheckError(f"load() of an empty folder raised {type(error).__name__}: {error}.") from error
        raise CheckError("load() of an empty folder was accepted.")

    def value(self) -> None:
        """V(s) is (B,), finite and differentiable in some parameter."""
        policy = self.policy
        assert isinstance(policy, ValuePolicy)
        value = policy.value(to_tensors(self._observation()))
        expect(tuple(value.shape) == (ROWS,), f"value has shape {tuple(value.shape)}, expected {(ROWS,)}.")
        expect(value.dtype == torch.float32, f"value has dtype {value.dtype}, expected float32.")
        expect(bool(torch.isfinite(value).all()), "value is not finite.")
        expect(bool(value.requires_grad), "value is not differentiable.")

    def precompute(self) -> None:
        """Cached features give the same log-probs as the observation itself."""
        policy = self.policy
        assert isinstance(policy, CachingPolicy)
        observation, sample = to_tensors(self._observation()), self._sample()
        with torch.no_grad():
            cached = policy.precompute(observation)
            plain, fast = (self._evaluate(item, sample).log_prob.sum(1) for item in (observation, cached))
        error = float((plain - fast).abs().max())
        expect(error <= RATIO_TOLERANCE, f"with cached features log-probs differ by up to {error:.3g}.")

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _observation(self) -> Observation:
        return draw_observation(self.env_spec, ROWS, stream(self.seed, "check_policy", "observation"))

    def _sample(
        self,
        observation: Observation | None = None,
        *,
        salt: int = 0,
        deterministic: bool = False,
        policy: TrainablePolicy | None = None,
    ) -> ActionSample:
        given = self._observation() if observation is None else observation
        generator = stream(self.seed, "check_policy", "act", salt)
        return (policy or self.policy).act(given, generator=generator, deterministic=deterministic)

    def _executed(self, count: int) -> torch.Tensor:
        return torch.full((ROWS,), count)

    def _evaluate(self, observation: Observation, sample: ActionSample) -> Any:
        every = self._executed(self.policy.spec.chunk_steps)
        return self.policy.evaluate(to_tensors(observation), as_tensors(sample), every)

    def _divergence(self, reference: TrainablePolicy, executed: int = 0) -> torch.Tensor:
        count = self._executed(executed or self.policy.spec.chunk_steps)
        observation, sample = to_tensors(self._observation()), as_tensors(self._sample())
        found: torch.Tensor = self.policy.divergence(observation, sample, reference, count)
        return found

    def _neighbour(self) -> TrainablePolicy:
        other = self.policy.clone()
        nudge(other, self.policy, stream(self.seed, "check_policy", "nudge"))
        return other

    def _other_chunk(self) -> torch.Tensor:
        return torch.from_numpy(self._sample(salt=2).action_chunk.copy())


_METHODS = (
    "act",
    "evaluate",
    "divergence",
    "imitation_loss",
    "parameter_groups",
    "state_dict",
    "load_state_dict",
    "clone",
    "normalisation",
    "save",
    "load",
)


def as_tensors(sample: ActionSample) -> ActionSample:
    """Return a sample as ``evaluate`` gets it inside an update: tensors, which share memory with the arrays."""
    arrays = to_tensors(dict(sample.trace))
    return ActionSample(torch.from_numpy(sample.action_chunk), torch.from_numpy(sample.log_prob), arrays)


def _has_gradient(loss: torch.Tensor, policy: TrainablePolicy) -> bool:
    actor = policy.parameter_groups()["actor"]
    found = torch.autograd.grad(loss, actor, allow_unused=True)
    return any(item is not None and bool(item.any()) for item in found)


def _parts(sample: ActionSample) -> dict[str, Any]:
    return {"action_chunk": sample.action_chunk, "log_prob": sample.log_prob, "trace": dict(sample.trace)}


def _global_random_state() -> tuple[bytes, bytes, int]:
    _, words, position, *_ = np.random.get_state()  # noqa: NPY002
    return torch.random.get_rng_state().numpy().tobytes(), np.asarray(words).tobytes(), int(position)
