"""What recipes share: from chosen configurations to built objects, to a run of the trainer."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import registry
from burnish.cli.acting import RANGES
from burnish.cli.building import build_env, build_policy, component_of, describe
from burnish.cli.console import console, say
from burnish.cli.train import Run
from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.rl.checkpoint import last_checkpoint, load_policy, read_description, resolve
from burnish.rl.log import progress
from burnish.rl.train import Parts, TrainNumbers, train


@dataclass(frozen=True)
class Setup:
    """Everything that a reinforcement-learning recipe hands over."""

    recipe: str
    """Id of the recipe."""
    env: Any
    """Configuration of the environment."""
    policy: Any
    """Configuration of the policy."""
    checkpoint: str
    """Run or checkpoint folder of the pretrained policy; "" to begin with fresh weights."""
    num_envs: int
    """Environments run at once."""
    workers: int
    """Worker processes; 0 runs in this process."""
    sampler: Any
    """Configuration of the sampler."""
    labelers: Sequence[Any]
    """Configurations, in order of work."""
    objectives: Sequence[Any]
    """Configurations; their losses are added."""
    controllers: Sequence[Any]
    """Configurations, in order of work."""
    numbers: TrainNumbers
    """Numbers of the loop."""


def post_train(setup: Setup, run: Run) -> int:
    """Build everything, train, and say where the result is."""
    there = last_checkpoint(run.directory) if run.resume else None
    source: dict[str, Any] = {}
    if there is not None:  # all that the run began with is in its own folder
        source = read_description(there)
        policy_config = component_of(there, source, "policy")
    else:
        if setup.checkpoint:
            source = read_description(resolve(Path(setup.checkpoint)))
        policy_config = start_from(setup.policy, setup.checkpoint)
    env = build_env(setup.env, setup.num_envs, setup.workers)
    try:
        policy = build_policy(policy_config, env.spec, seed=setup.numbers.seed)
        if there is None and setup.checkpoint and not getattr(policy_config, "path", None):
            load_policy(resolve(Path(setup.checkpoint)), policy)
        parts = Parts(
            sampler=setup.sampler.build(env.spec, generator=stream(setup.numbers.seed, "sampler")),
            labelers=tuple(item.build() for item in setup.labelers),
            objectives=tuple(item.build() for item in setup.objectives),
            controllers=tuple(item.build() for item in setup.controllers),
        )
        replan = setup.numbers.replan_steps or policy.spec.chunk_steps
        # A policy made from a folder knows the configuration that builds it again without that folder.
        built_from = getattr(policy, "config", policy_config)
        description = describe(setup.recipe, built_from, setup.env, env.spec, replan)
        if RANGES in source:
            description[RANGES] = source[RANGES]
        with progress(setup.numbers.iterations, console) as report:
            result = train(
                policy,
                env,
                parts,
                setup.numbers,
                run=run.directory,
                description=description,
                resume=run.resume,
                report=report,
            )
    finally:
        env.close()
    say(f"\nEnded after {result.iterations} iterations: {result.reason}. Next: burnish eval {run.directory}")
    say(f"The policy alone, as a folder that stands for itself: {result.checkpoint / 'policy'}")
    return 0


def start_from(policy: Any, checkpoint: str) -> Any:
    """Return the configuration of a policy that begins as a checkpoint's.

    The checkpoint's own configuration is taken, unless the recipe or options ask for something else; a policy that can
    be built from a folder gets the checkpoint's as its ``path``.

    Raises:
        ConfigError: If the checkpoint holds another kind of policy.
    """
    if not checkpoint:
        return policy
    directory = resolve(Path(checkpoint))
    stored = component_of(directory, read_description(directory), "policy")
    found, wanted = registry.name_of("policy", stored), registry.name_of("policy", policy)
    if found != wanted:
        raise ConfigError(f"{checkpoint} holds a policy of kind '{found}', not '{wanted}': use --policy {found}.")
    begun = stored if policy == type(policy)() else policy
    if "path" not in {field.name for field in dataclasses.fields(begun)}:
        return begun
    return dataclasses.replace(begun, path=str(directory / "policy"))
