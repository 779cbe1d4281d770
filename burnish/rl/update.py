"""One update: minibatches of a labelled rollout over the objectives, lean enough for small nets on a CPU."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from burnish.core.contracts import Decision, Objective, TrainablePolicy
from burnish.core.errors import CheckError, ConfigError, suggest
from burnish.core.spec import Array
from burnish.data.rollout import Batch
from burnish.rl.hand_gradient import hand_update

GATHER_BYTES = 256 << 20
"""A batch smaller than this is shuffled whole once per epoch; a larger one is gathered minibatch by minibatch."""


class SharedEvaluation:
    """A policy as objectives see it within one minibatch: ``evaluate`` and ``value`` run once, however many ask."""

    def __init__(self, policy: TrainablePolicy) -> None:
        """Wrap a policy."""
        self._policy = policy
        self._found: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}
        critic = getattr(policy, "value", None)
        if critic is not None:
            self.value = lambda observation: self._once(critic, observation)

    def evaluate(self, observation: Any, sample: Any, executed: Any) -> Any:
        """Return the policy's evaluation of a minibatch."""
        return self._once(self._policy.evaluate, observation, sample, executed)

    def forget(self) -> None:
        """Begin a new minibatch."""
        self._found = {}

    def _once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        key = tuple(map(id, arguments))
        if key not in self._found:
            self._found[key] = (arguments, compute(*arguments))  # holding the arguments keeps their ids theirs
        return self._found[key][1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class Optimiser:
    """Fused Adam over the parameter groups of a policy, each with its own rate and gradient limit."""

    def __init__(
        self, policy: TrainablePolicy, learning_rate: Mapping[str, float], *, epsilon: float, weight_decay: float = 0.0
    ) -> None:
        """Take the groups that ``learning_rate`` names; others stay as they are.

        Args:
            policy: Whose parameters are trained.
            learning_rate: By parameter group.
            epsilon: Adam's.
            weight_decay: Decoupled from the gradient, as in AdamW; 0 is Adam.

        Raises:
            ConfigError: If a group does not exist, or no rate is given for any.
        """
        groups = policy.parameter_groups()
        for role in learning_rate:
            if role not in groups:
                raise ConfigError(
                    f"learning_rate names '{role}', but policy '{policy.spec.id}' has no such parameter group."
                    f"{suggest(role, groups)}"
                )
        self.roles = [role for role in learning_rate if groups[role]]
        if not self.roles:
            raise ConfigError(f"learning_rate names no parameter group.{suggest('', groups)}")
        self.parameters = {role: groups[role] for role in self.roles}
        self.active: tuple[str, ...] | None = None
        """Roles that are trained now; None for all."""
        self._rates = dict(learning_rate)
        self._kept: dict[tuple[str, int, str], torch.Tensor] = {}
        self._moments: list[tuple[list[torch.Tensor], ...]] = []
        """By role: averages, squares and step counts of Adam, once they exist."""
        self._fused = all(item.is_floating_point() for items in self.parameters.values() for item in items)
        self.adam = torch.optim.AdamW(
            [{"params": self.parameters[role], "lr": learning_rate[role]} for role in self.roles],
            eps=epsilon,
            weight_decay=weight_decay,
            fused=self._fused,
        )

    def set_factor(self, factor: float) -> None:
        """Set all rates to ``factor`` times the configured ones."""
        for role, group in zip(self.roles, self.adam.param_groups, strict=True):
            group["lr"] = self._rates[role] * factor

    def step(self, max_grad_norm: float) -> dict[str, float]:
        """Clip each role's gradient and step; returns ``grad_norm/<role>`` before clipping."""
        gradients: dict[str, list[torch.Tensor]] = {}
        for role in self.roles:
            if self.active is not None and role not in self.active:
                for parameter in self.parameters[role]:
                    parameter.grad = None
                continue
            gradients[role] = [item.grad for item in self.parameters[role] if item.grad is not None]
        sizes = _norms([item for items in gradients.values() for item in items])
        norms: dict[str, float] = {}
        for role, items in gradients.items():
            size = float(np.sqrt(np.square(sizes[: len(items)]).sum()))
            norms[f"grad_norm/{role}"], sizes = size, sizes[len(items) :]
            if 0.0 < max_grad_norm < size < float("inf"):
                torch._foreach_mul_(items, max_grad_norm / (size + 1e-6))
        if not all(map(math.isfinite, norms.values())):
            raise CheckError(f"The gradient is not finite ({norms}). Lower the learning rate or look at the rewards.")
        self._step_adam()
        return norms

    def _step_adam(self) -> None:
        """Step as ``adam.step()`` does, whose own bookkeeping costs more than the arithmetic of a small network."""
        whole = all(item.grad is not None for items in self.parameters.values() for item in items)
        if not self._moments and whole and self._fused:
            self.adam.step()
            states = ([self.adam.state[item] for item in self.parameters[role]] for role in self.roles)
            self._moments = [
                tuple([state[name] for state in items] for name in ("exp_avg", "exp_avg_sq", "step"))
                for items in states
            ]
            return
        if not whole or not self._fused:
            self.adam.step()
            return
        with torch.no_grad():
            for role, group, (average, square, steps) in zip(
                self.roles, self.adam.param_groups, self._moments, strict=True
            ):
                torch._foreach_add_(steps, 1)
                torch._fused_adamw_(
                    list[torch.Tensor](self.parameters[role]),
                    [cast(torch.Tensor, item.grad) for item in self.parameters[role]],
                    average,
                    square,
                    [],
                    steps,
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )

    def forget_gradients(self) -> None:
        """Begin a new minibatch."""
        for parameters in self.parameters.values():
            for parameter in parameters:
                parameter.grad = None

    def keep(self) -> None:
        """Remember parameters and moments for :meth:`restore`."""
        self._kept = {key: item.detach().clone() for key, item in self._tensors().items()}

    def restore(self) -> None:
        """Undo all steps since :meth:`keep`; moments that did not exist then become zero."""
        with torch.no_grad():
            for key, item in self._tensors().items():
                if key in self._kept:
                    item.copy_(self._kept[key])
                else:
                    item.zero_()

    def _tensors(self) -> dict[tuple[str, int, str], torch.Tensor]:
        found: dict[tuple[str, int, str], torch.Tensor] = {}
        for role in self.roles:
            for i, parameter in enumerate(self.parameters[role]):
                found[role, i, "parameter"] = parameter
                for name, item in self.adam.state.get(parameter, {}).items():
                    found[role, i, name] = item
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's moments by parameter number, as tensors."""
        return {"state": {str(key): dict(item) for key, item in self.adam.state_dict()["state"].items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        whole = self.adam.state_dict()
        whole["state"] = {
            int(key): {name: tensor.clone() for name, tensor in item.items()} for key, item in state["state"].items()
        }
        self.adam.load_state_dict(whole)
        self._moments = []


def total_loss(
    policy: TrainablePolicy,
    batch: Batch,
    objectives: Sequence[Objective],
    *,
    previous: TrainablePolicy,
    reference: TrainablePolicy,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the sum of coefficient * loss over objectives with a coefficient other than 0, and their metrics.

    Raises:
        CheckError: If a loss is not finite.
    """
    total: torch.Tensor | None = None
    metrics: dict[str, float] = {}
    for objective in objectives:
        if objective.coefficient == 0.0:
            continue
        loss, figures = objective.loss(policy, batch, previous=previous, reference=reference)
        metrics[f"{objective.name}/loss"] = loss.item()
        _check_loss(objective, metrics, batch)
        metrics |= {f"{objective.name}/{key}": figure for key, figure in figures.items()}
        weighted = loss if objective.coefficient == 1.0 else objective.coefficient * loss
        total = weighted if total is None else total + weighted
    return torch.zeros(()) if total is None else total, metrics


def update(
    policy: TrainablePolicy,
    batch: Batch,
    objectives: Sequence[Objective],
    optimiser: Optimiser,
    *,
    previous: TrainablePolicy,
    reference: TrainablePolicy,
    epochs: int,
    minibatch_size: int,
    max_grad_norm: float,
    generator: np.random.Generator,
    after_epoch: Callable[[Mapping[str, float]], Decision],
) -> tuple[dict[str, float], Decision]:
    """Train on a batch.

    Args:
        policy: Trained in place.
        batch: All labelled decisions.
        objectives: What is minimised.
        optimiser: Holds the parameters.
        previous: The policy as it is now, frozen.
        reference: The pretrained policy, frozen.
        epochs: How often the batch is used, at most.
        minibatch_size: Decisions per gradient step, about: minibatches of an epoch are equal to one.
        max_grad_norm: Limit of each role's gradient norm; 0 for none.
        generator: Shuffles.
        after_epoch: Receives the epoch's metrics, and decides.

    Returns:
        Metrics of the last epoch (means over its minibatches), and the decision that ended the update.
    """
    shared = SharedEvaluation(policy)
    view = cast(TrainablePolicy, shared)
    count = max(1, round(len(batch) / minibatch_size))
    bounds = np.linspace(0, len(batch), count + 1).astype(int).tolist()
    by_hand = hand_update(policy, batch, objectives)
    whole = (
        by_hand is None
        and sum(item.nbytes for item in batch.observation.values() if isinstance(item, torch.Tensor)) < GATHER_BYTES
    )
    metrics: dict[str, float] = {}
    decision = Decision()
    for epoch in range(epochs):
        permutation = generator.permutation(len(batch))
        order = torch.from_numpy(permutation)
        shuffled = batch.take(order) if whole else None
        rows: list[dict[str, float]] = []
        for start, stop in itertools.pairwise(bounds):
            if by_hand is not None:
                figures = by_hand.minibatch(permutation[start:stop])
                for objective in objectives:
                    if objective.coefficient != 0.0:
                        _check_loss(objective, figures, batch)
                rows.append(figures | optimiser.step(max_grad_norm))
                continue
            part = shuffled.part(start, stop) if shuffled is not None else batch.take(order[start:stop])
            shared.forget()
            loss, figures = total_loss(view, part, objectives, previous=previous, reference=reference)
            optimiser.forget_gradients()
            loss.backward()  # type: ignore[no-untyped-call]
            rows.append(figures | optimiser.step(max_grad_norm))
        shared.forget()
        metrics = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        metrics["epochs"] = float(epoch + 1)
        decision = after_epoch(metrics)
        if decision.action != "go_on":
            break
    return metrics, decision


def _norms(gradients: list[torch.Tensor]) -> Array:
    """Return the norm of each, through one transfer from their device."""
    if not gradients:
        return np.zeros(0)
    sizes: Array = torch.stack(torch._foreach_norm(gradients)).cpu().numpy().astype(np.float64)
    return sizes


def _check_loss(objective: Objective, metrics: Mapping[str, float], batch: Batch) -> None:
    number = metrics[f"{objective.name}/loss"]
    if not math.isfinite(number):
        raise CheckError(
            f"The loss of objective '{objective.name}' is {number}. Ranges in this minibatch: advantage "
            f"{_range(batch.advantage)}, return {_range(batch.return_)}, log-prob {_range(batch.sample.log_prob)}."
        )


def _range(item: torch.Tensor) -> str:
    return f"[{item.min().item():.4g}, {item.max().item():.4g}]"
