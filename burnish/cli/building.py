"""Build environments, policies and teachers from configurations and checkpoints; what several commands share."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish import registry
from burnish.core.contracts import Policy, Teacher, TrainablePolicy, VecEnv
from burnish.core.errors import CheckpointError, ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import EnvSpec, Observation, PolicySpec, check_fit, policy_spec_from_json
from burnish.core.step import ActionSample
from burnish.data.episodes import Act
from burnish.rl.checkpoint import DESCRIPTION_FILE, load_policy, read_description, resolve


def build_env(config: Any, num_envs: int, workers: int = 0) -> VecEnv:
    """Build an environment in this process, or in spawned workers.

    Args:
        config: Configuration of an env.
        num_envs: N.
        workers: Worker processes; 0 runs in this process.
    """
    if workers < 0 or num_envs < 1 or (workers and num_envs < workers):
        raise ConfigError(f"num_envs ({num_envs}) must be at least 1 and at least workers ({workers}), which is >= 0.")
    if workers == 0:
        env: VecEnv = config.build(num_envs)
        return env
    from burnish.envs.processes import ProcessVecEnv

    return ProcessVecEnv(config.build, num_envs=num_envs, workers=workers)


def build_policy(
    config: Any, spec: EnvSpec, *, seed: int, statistics: Mapping[str, Mapping[str, list[float]]] | None = None
) -> TrainablePolicy:
    """Build a policy for an environment and check that the two fit."""
    policy: TrainablePolicy = config.build(spec, generator=stream(seed, "policy"), statistics=statistics)
    check_fit(policy.spec, spec)
    return policy


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, read."""

    directory: Path
    """The checkpoint folder itself."""
    description: dict[str, Any]
    """burnish.json."""
    env_config: Any
    """Configuration of the env it was trained in."""
    policy: TrainablePolicy
    """The policy, weights loaded."""

    @property
    def replan_steps(self) -> int:
        """Actions executed of each chunk."""
        return int(self.description["replan_steps"])


def load_checkpoint(path: Path | str, env_config: Any | None = None) -> Loaded:
    """Read a run folder or a checkpoint folder.

    Args:
        path: Where it is.
        env_config: Another environment than the one it was trained in.

    Raises:
        CheckpointError: If it is none, is damaged, or does not fit the environment.
    """
    directory = resolve(Path(path))
    description = read_description(directory)
    env = env_config if env_config is not None else component_of(directory, description, "env")
    policy_config = component_of(directory, description, "policy")
    if not isinstance(description.get("replan_steps"), int):
        raise CheckpointError(f"{directory / DESCRIPTION_FILE} does not say 'replan_steps'; it is damaged.")
    policy = build_policy(policy_config, env_spec_of(env), seed=0)
    check_meaning(directory, description, policy.spec)
    load_policy(directory, policy)
    return Loaded(directory, description, env, policy)


def check_meaning(directory: Path, description: Mapping[str, Any], spec: PolicySpec) -> None:
    """Refuse an environment whose vectors have the checkpoint's shapes, but entries of other names.

    Args:
        directory: Checkpoint, for the message.
        description: Its ``burnish.json``.
        spec: Of the policy as it was built for the environment.

    Raises:
        CheckpointError: Names the vector, and both lists of entries.
    """
    try:
        stored = policy_spec_from_json(description["policy_spec"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / DESCRIPTION_FILE} holds no policy_spec: {error!r}. It is damaged."
        ) from error
    pairs = [("action", stored.action, spec.action)]
    pairs += [(key, item, spec.observation[key]) for key, item in stored.observation.items() if key in spec.observation]
    for key, before, now in pairs:
        if before.shape == now.shape and before.names and now.names and before.names != now.names:
            raise CheckpointError(
                f"{directory} was trained with '{key}' holding {', '.join(before.names)}, but in this environment it "
                f"holds {', '.join(now.names)}: as many numbers, another meaning. Use the environment, or the version "
                "of burnish, that it was trained with."
            )


def component_of(directory: Path, description: Mapping[str, Any], kind: str) -> Any:
    """Return the configuration of a checkpoint's env or policy.

    Raises:
        CheckpointError: If the description does not hold one.
        ConfigError: If this version of burnish has no such field.
        UnknownNameError: If there is no such component here.
    """
    entry = description.get(kind)
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or "config" not in entry:
        raise CheckpointError(
            f"{directory / DESCRIPTION_FILE} does not say which {kind} it belongs to: '{kind}' is {entry!r}, expected "
            "an object with 'id' and 'config'. It is damaged, or was saved without burnish train."
        )
    return registry.from_json(kind, entry)


@functools.lru_cache(maxsize=8)
def env_spec_of(config: Any) -> EnvSpec:
    """Return the spec of an environment by building one and closing it."""
    env = config.build(1)
    try:
        spec: EnvSpec = env.spec
        return spec
    finally:
        env.close()


def teacher_act(teacher: Teacher, seed: int) -> Act:
    """Return an ``act(observation)`` function for the episode runner."""
    generator = stream(seed, "teacher")
    return lambda observation: teacher.act(observation, generator=generator)


class TeacherActor:
    """A teacher in the place of an acting policy; since it reads what it likes, it is evaluated and never deployed."""

    def __init__(self, teacher: Teacher, name: str, env_spec: EnvSpec, chunk_steps: int) -> None:
        """Wrap a teacher.

        Args:
            teacher: Answers with chunks of ``chunk_steps`` actions.
            name: Its id.
            env_spec: Where it acts.
            chunk_steps: K.
        """
        self.spec = PolicySpec(f"teacher {name}", {}, env_spec.action, chunk_steps)
        self._teacher = teacher

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Return the teacher's chunks (N, K, A); it has no other mode than its own."""
        del deterministic
        chunk = self._teacher.act(observation, generator=generator)
        return ActionSample(chunk, np.zeros(chunk.shape[:2], np.float32))


def describe(recipe: str, policy: Any, env: Any, spec: EnvSpec, replan_steps: int) -> dict[str, Any]:
    """Return what a checkpoint says of itself, as JSON values."""
    from burnish.core.spec import to_json

    return {
        "recipe": recipe,
        "policy": registry.to_json("policy", policy),
        "env": registry.to_json("env", env),
        "env_spec": to_json(spec),
        "replan_steps": replan_steps,
    }


def actor_of(policy: Policy, seed: int, *, deterministic: bool = True) -> Act:
    """Return an ``act(observation)`` function of a policy for the episode runner."""
    generator = stream(seed, "actor")
    return lambda observation: policy.act(observation, generator=generator, deterministic=deterministic).action_chunk
