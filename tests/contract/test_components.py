"""Every registered component keeps its contract; a new file is picked up by itself."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from burnish import registry
from burnish.core.check import check_controller, check_env, check_sampler, check_teacher
from burnish.core.errors import ConfigError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import EnvSpec
from burnish.rl.check import check_labeler, check_objective, check_policy
from tests.contract import broken

EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("controller", "compute_budget"): {"env_steps": 1000},
}
"""Fields for components whose defaults name no valid case, or are too large for a test."""
CHECKED_KINDS = ("env", "policy", "teacher", "sampler", "labeler", "objective", "controller")
UNCHECKED_KINDS = ("world_model", "recipe")


def config_of(kind: str, name: str) -> Any:
    return registry.load(kind, name)(**EXAMPLES.get((kind, name), {}))


@cache
def spec_of(name: str) -> EnvSpec:
    env = config_of("env", name).build(1)
    env.close()
    spec: EnvSpec = env.spec
    return spec


def fitting(build: Callable[[EnvSpec], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the environments that a component can be built for, and the component; at least one."""
    reasons, found = [], False
    for env in registry.names("env"):
        try:
            component = build(spec_of(env))
        except (ConfigError, SpecError) as error:
            reasons.append(f"{env}: {error}")
        else:
            found = True
            yield env, component
    assert found, "It fits no registered environment:\n" + "\n".join(reasons)


def test_every_kind_is_either_checked_here_or_known_not_to_be() -> None:
    assert sorted((*CHECKED_KINDS, *UNCHECKED_KINDS)) == sorted(registry.FOLDERS)


@pytest.mark.parametrize("name", registry.names("env"))
def test_env(name: str) -> None:
    assert check_env(config_of("env", name).build)


@pytest.mark.parametrize("name", registry.names("policy"))
def test_policy(name: str) -> None:
    config = config_of("policy", name)
    env_name, policy = next(fitting(lambda spec: config.build(spec, generator=stream(0))))
    assert check_policy(policy, spec_of(env_name))


@pytest.mark.parametrize("name", registry.names("teacher"))
def test_teacher(name: str) -> None:
    config = config_of("teacher", name)
    for env_name, teacher in fitting(config.build):
        env = config_of("env", env_name).build(3)
        assert check_teacher(teacher, env)
        env.close()


@pytest.mark.parametrize("name", registry.names("sampler"))
def test_sampler(name: str) -> None:
    config = config_of("sampler", name)
    assert check_sampler(lambda generator: config.build(broken.SPEC, generator=generator), broken.SPEC)


@pytest.mark.parametrize("name", registry.names("labeler"))
def test_labeler(name: str) -> None:
    assert check_labeler(config_of("labeler", name).build(), broken.make_policy(), broken.SPEC)


@pytest.mark.parametrize("name", registry.names("objective"))
def test_objective(name: str) -> None:
    assert check_objective(config_of("objective", name).build(), broken.make_policy(), broken.SPEC)


@pytest.mark.parametrize("name", registry.names("controller"))
def test_controller(name: str) -> None:
    assert check_controller(config_of("controller", name).build)
