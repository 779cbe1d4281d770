"""What a run checks before and while it learns: that every objective acts, and that groups say something."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from burnish.core.contracts import Objective, TrainablePolicy
from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import stream
from burnish.data.rollout import Batch

PROBE_ROWS = 16


def check_objectives(
    policy: TrainablePolicy, batch: Batch, objectives: Sequence[Objective], roles: Sequence[str]
) -> None:
    """Refuse an objective whose coefficient is above 0 and whose gradient is zero for this policy family.

    The probe uses a few decisions with random advantages and returns, and slightly perturbed copies of the policy as
    the previous and the reference one, because a divergence has no gradient at equal policies.

    Args:
        policy: The one to be trained; unchanged, its gradients are cleared.
        batch: Decisions of the first rollout.
        objectives: Objectives of the run; names must differ.
        roles: Parameter groups that are trained.

    Raises:
        ConfigError: Names the objective and the parameter groups that were looked at.
    """
    names = [objective.name for objective in objectives]
    if len(set(names)) != len(names):
        raise ConfigError(f"Objectives need different names, found {names}: the log could not tell them apart.")
    groups = policy.parameter_groups()
    parameters = [item for role in roles for item in groups[role]]
    generator = stream(0, "probe")
    part = batch.part(0, min(PROBE_ROWS, len(batch)))

    def noise() -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(len(part))).float()

    part = replace(part, advantage=noise(), return_=part.value + noise(), weight=torch.ones(len(part)))
    other = perturbed_clone(policy, parameters)
    for objective in objectives:
        if objective.coefficient == 0.0:
            continue
        loss, _ = objective.loss(policy, part, previous=other, reference=other)
        gradient: Sequence[Any] = ()
        if loss.requires_grad:
            gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
        if not any(item is not None and bool((item != 0).any()) for item in gradient):
            raise ConfigError(
                f"Objective '{objective.name}' has coefficient {objective.coefficient:g}, but its gradient is zero for "
                f"policy '{policy.spec.id}': it would be ignored silently. Looked at parameter groups "
                f"{', '.join(roles)}. Set the coefficient to 0, train a group that it acts on, or use a policy family "
                "that supports it."
            )


def perturbed_clone(policy: TrainablePolicy, parameters: Sequence[torch.Tensor]) -> TrainablePolicy:
    """Return a frozen copy whose ``parameters`` (tensors of ``policy``) are moved a little."""
    generator = stream(0, "perturb")
    places = {item.data_ptr() for item in parameters}
    state: dict[str, torch.Tensor] = {}
    for name, item in policy.state_dict().items():
        state[name] = item.detach().clone()
        if item.data_ptr() in places and item.is_floating_point():
            noise = torch.from_numpy(generator.standard_normal(tuple(item.shape))).to(item.dtype)
            state[name] += 0.02 * noise * (item.detach().abs() + 0.1)
    other = policy.clone()
    other.load_state_dict(state)
    return other


MAY_CHANGE = ("iterations", "checkpoint_every", "keep_checkpoints")
"""Numbers that may differ when a run is resumed."""


def check_same_run(
    checkpoint: Path,
    found: Mapping[str, Any],
    state: Mapping[str, Any],
    description: Mapping[str, Any],
    numbers: Mapping[str, Any],
) -> None:
    """Refuse to resume a run with another environment or other numbers.

    Args:
        checkpoint: Folder, for the message.
        found: ``burnish.json`` of the checkpoint.
        state: Training state of the checkpoint, holds ``numbers``.
        description: Description of the run that is to go on, holds ``env_spec``.
        numbers: Its numbers.

    Raises:
        ConfigError: Lists what differs.
    """
    before = {f"numbers.{key}": item for key, item in state["numbers"].items() if key not in MAY_CHANGE}
    now = {f"numbers.{key}": item for key, item in numbers.items() if key not in MAY_CHANGE}
    before |= {f"env_spec.{key}": item for key, item in found["env_spec"].items()}
    now |= {f"env_spec.{key}": item for key, item in description["env_spec"].items()}
    different = [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if different:
        raise ConfigError(
            f"{checkpoint} cannot be resumed as another run: {'; '.join(different)}. Set them back, or start a new run "
            "from this checkpoint. When resuming, only these may change: " + ", ".join(MAY_CHANGE) + "."
        )


class DegenerateGroups:
    """Count groups whose members all did equally well, and end a run that goes on without learning from any."""

    def __init__(self, *, share: float, patience: int) -> None:
        """Set the bound.

        Args:
            share: Largest share of degenerate groups in an iteration.
            patience: How many iterations in a row may be above it.
        """
        self._share = share
        self._patience = patience
        self._count = 0

    def after(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the share for the log, {} for runs without groups.

        Raises:
            CheckError: If too many iterations in a row were above the bound.
        """
        groups = metrics.get("groups", 0.0)
        if not groups:
            return {}
        share = metrics["degenerate_groups"] / groups
        self._count = self._count + 1 if share > self._share else 0
        if self._count > self._patience:
            raise CheckError(
                f"{share:.0%} of the groups were degenerate (all members with equal returns), and more than "
                f"{self._share:.0%} for {self._count} iterations in a row: nothing is learned from them. The tasks are "
                "too hard or too easy, the policy is too deterministic, or groups are too small. Nothing is resampled "
                "for this; change the sampler, group size or noise, or raise max_degenerate_share."
            )
        return {"degenerate_share": share}

    def state_dict(self) -> dict[str, Any]:
        """Return the count."""
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count."""
        self._count = int(state["count"])
