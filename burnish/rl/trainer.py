"""One run of training, an iteration at a time: collect, label, update, check, and save what the next one needs."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from burnish.core.config import to_plain
from burnish.core.contracts import Decision, NormalisingPolicy, TrainablePolicy, VecEnv
from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import check_fit, to_json
from burnish.data.durable import durable_folder
from burnish.data.rollout import Rollout
from burnish.rl.checkpoint import last_checkpoint, load_policy, load_training, save_run_checkpoint
from burnish.rl.collect import Collector
from burnish.rl.losses import explained_variance
from burnish.rl.numbers import Parts, TrainNumbers
from burnish.rl.prepare import prepare
from burnish.rl.run_checks import DegenerateGroups, check_objectives, check_same_run
from burnish.rl.update import Optimiser, update

STRENGTH = ("go_on", "stop_epochs", "revert", "stop")


class Trainer:
    """All state of a run between two iterations."""

    def __init__(
        self,
        policy: TrainablePolicy,
        env: VecEnv,
        parts: Parts,
        numbers: TrainNumbers,
        run: Path,
        description: Mapping[str, Any],
    ) -> None:
        """Check that the parts fit; see :func:`burnish.rl.train.train` for the arguments."""
        check_fit(policy.spec, env.spec)
        self.policy, self.env, self.parts, self.numbers, self.run = policy, env, parts, numbers, run
        self.description = {
            "env_spec": to_json(env.spec),
            "replan_steps": numbers.replan_steps or policy.spec.chunk_steps,
            **description,
        }
        keys = [key for labeler in parts.labelers for key in getattr(labeler, "observation_keys", ())]
        self.collector = Collector(env, policy, replan_steps=numbers.replan_steps, extra_keys=keys)
        self.groups = DegenerateGroups(share=numbers.max_degenerate_share, patience=numbers.degenerate_patience)
        self.counts = {"iteration": 0, "env_steps": 0, "episodes": 0}
        self.seconds = 0.0
        self.rate = 1.0
        self.probed = False

    @property
    def iteration(self) -> int:
        """How many iterations are done."""
        return self.counts["iteration"]

    def open(self, resume: bool) -> None:
        """Set the reference, and the state of the newest checkpoint."""
        checkpoint = last_checkpoint(self.run)
        if checkpoint is not None and not resume:
            raise ConfigError(f"{self.run} holds a run ({checkpoint.name}). Resume it, or name another folder.")
        if checkpoint is None:
            with durable_folder(self.run / "reference") as folder:
                self.policy.save(folder)
        else:
            self.policy.load(self.run / "reference")
        self.reference = self.policy.clone()
        self.previous = self.policy.clone()
        state = None
        if checkpoint is not None:
            found = load_policy(checkpoint, self.policy)
            state = load_training(checkpoint)
            check_same_run(checkpoint, found, state, self.description, to_plain(self.numbers))
        self.optimiser = Optimiser(self.policy, self.numbers.learning_rate, epsilon=self.numbers.adam_epsilon)
        if state is not None:
            self._load(state)

    def iterate(self) -> tuple[dict[str, float], str]:
        """Run one iteration; returns its metrics, and why the run must end ("" to go on)."""
        begun = time.perf_counter()
        collection = self._collect()
        collected = time.perf_counter()
        rollout = prepare(
            collection, self.policy, tolerance=self.numbers.replay_tolerance, checksums=self.collector.checksums
        )
        for labeler in self.parts.labelers:
            rollout = labeler.label(rollout, self.policy, self.reference)
        labelled = time.perf_counter()
        metrics, decision = self._update(rollout)
        if isinstance(self.policy, NormalisingPolicy):
            self.policy.update_normalisation(collection.flat_observation())
        self.counts["iteration"] += 1
        self.counts["env_steps"] += int(rollout.executed.sum())
        self.counts["episodes"] += len(rollout.episodes)
        ended = time.perf_counter()
        self.seconds += ended - begun
        metrics = {**self.counts, "seconds": self.seconds, **_describe(rollout), **metrics}
        metrics |= self.groups.after(metrics)
        metrics |= {
            "time/collect": collected - begun,
            "time/label": labelled - collected,
            "time/update": ended - labelled,
            "env_steps_per_second": float(rollout.executed.sum()) / (ended - begun),
            "learning_rate_factor": self.rate,
        }
        if self.iteration > self.numbers.warmup_iterations:
            final = self._after("iteration", metrics)
            decision = final if final.action == "stop" else decision
        return metrics, decision.reason or "a controller ended the run" if decision.action == "stop" else ""

    def save(self) -> None:
        """Write a checkpoint; running episodes begin again from their Starts."""
        parts = self.parts
        training = {
            "counts": dict(self.counts),
            "seconds": self.seconds,
            "rate": self.rate,
            "numbers": to_plain(self.numbers),
            "coefficients": {objective.name: objective.coefficient for objective in parts.objectives},
            "optimiser": self.optimiser.state_dict(),
            "collector": self.collector.state_dict(),
            "sampler": parts.sampler.state_dict(),
            "controllers": [controller.state_dict() for controller in parts.controllers],
            "groups": self.groups.state_dict(),
        }
        self.collector.interrupt()
        save_run_checkpoint(
            self.run,
            self.iteration,
            self.policy,
            description=self.description,
            training=training,
            keep=self.numbers.keep_checkpoints,
        )

    def _load(self, state: Mapping[str, Any]) -> None:
        self.counts = dict(state["counts"])
        self.seconds, self.rate = state["seconds"], state["rate"]
        for objective in self.parts.objectives:
            objective.coefficient = state["coefficients"][objective.name]
        self.optimiser.load_state_dict(state["optimiser"])
        self.collector.load_state_dict(state["collector"])
        self.parts.sampler.load_state_dict(state["sampler"])
        for controller, item in zip(self.parts.controllers, state["controllers"], strict=True):
            controller.load_state_dict(item)
        self.groups.load_state_dict(state["groups"])

    def _collect(self) -> Rollout:
        numbers, sampler = self.numbers, self.parts.sampler
        generator = stream(numbers.seed, "collect", self.iteration)
        if numbers.rollout_episodes:
            episodes = numbers.rollout_episodes
            rollout = self.collector.collect_episodes(self.policy, sampler, episodes, generator=generator)
        else:
            chunks = numbers.rollout_chunks
            rollout = self.collector.collect_chunks(self.policy, sampler, chunks, generator=generator)
        sampler.report(rollout.episodes)
        return rollout

    def _update(self, rollout: Rollout) -> tuple[dict[str, float], Decision]:
        numbers, objectives = self.numbers, self.parts.objectives
        batch = rollout.batch()
        if not self.probed:
            check_objectives(self.policy, batch, objectives, self.optimiser.roles)
            self.probed = True
        warmup = self.iteration < numbers.warmup_iterations
        if warmup:
            objectives = tuple(objective for objective in objectives if objective.name == "value")
            if not objectives or "critic" not in self.optimiser.roles:
                raise ConfigError("warmup_iterations needs the objective 'value' and a learning rate for 'critic'.")
        left = 1.0 - self.iteration / numbers.iterations if numbers.learning_rate_schedule == "linear" else 1.0
        self.optimiser.set_factor(self.rate * left)
        self.optimiser.active = ("critic",) if warmup else None
        self.previous.load_state_dict(self.policy.state_dict())
        if self.parts.controllers:
            self.optimiser.keep()
        metrics, decision = update(
            self.policy,
            batch,
            objectives,
            self.optimiser,
            previous=self.previous,
            reference=self.reference,
            epochs=numbers.epochs,
            minibatch_size=numbers.minibatch_size,
            max_grad_norm=numbers.max_grad_norm,
            generator=stream(numbers.seed, "update", self.iteration),
            after_epoch=lambda figures: Decision() if warmup else self._after("epoch", figures),
        )
        reverted = decision.action == "revert"
        if reverted:
            self.optimiser.restore()
        return {**metrics, "reverted": float(reverted)}, decision

    def _after(self, moment: Literal["epoch", "iteration"], metrics: Mapping[str, float]) -> Decision:
        """Ask all controllers, apply what they change, and return the decision with the strongest action."""
        strongest = Decision()
        for controller in self.parts.controllers:
            decision = controller.after(moment, metrics)
            self.rate *= decision.learning_rate_factor
            for objective in self.parts.objectives:
                objective.coefficient = decision.coefficients.get(objective.name, objective.coefficient)
            if STRENGTH.index(decision.action) > STRENGTH.index(strongest.action):
                strongest = decision
        return strongest


def _describe(rollout: Rollout) -> dict[str, float]:
    """Return figures of a labelled rollout."""
    found = dict(rollout.metrics)
    if rollout.episodes:
        found["return"] = float(np.mean([episode.return_ for episode in rollout.episodes]))
        found["success"] = float(np.mean([episode.success for episode in rollout.episodes]))
        found["length"] = float(np.mean([episode.length for episode in rollout.episodes]))
        for name in rollout.episodes[0].metrics:
            found[f"episode/{name}"] = float(np.mean([episode.metrics[name] for episode in rollout.episodes]))
    if rollout.value is not None and rollout.return_ is not None:
        ran = rollout.executed > 0
        value, return_ = (torch.from_numpy(item[ran]) for item in (rollout.value, rollout.return_))
        found["explained_variance"] = explained_variance(value, return_)
    return found
