"""``burnish check KIND ID``: the contract checks that our own tests run, for a component of anybody's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from burnish import registry
from burnish.cli.building import env_spec_of
from burnish.cli.console import plain, say
from burnish.cli.options import Component, parse, take, wants_help, with_components
from burnish.core.check import check_controller, check_env, check_sampler, check_teacher
from burnish.core.errors import BurnishError, CheckError, ConfigError, UnknownNameError, suggest
from burnish.core.seeding import stream
from burnish.core.spec import EnvSpec

CHECKED = ("env", "policy", "teacher", "sampler", "labeler", "objective", "controller")
"""Kinds that have a contract to be checked."""
ALONE = ("env", "controller")
"""Kinds that are checked without an environment around them."""
NUM_ENVS = 3
DEFAULT_ENV = "point_mass"


@dataclass(frozen=True)
class Options:
    """Run the shipped contract checks on one component: burnish check KIND ID [--env ID] [options].

    KIND is env, policy, teacher, sampler, labeler, objective or controller; ID is from burnish list, or the dotted path
    of your own module. Policies and parts are checked in --env (point_mass by default), labelers and objectives with a
    small mlp policy in it; a teacher in the first environment that it fits.
    """

    component: Component = None
    """Configuration of what is checked."""
    env: Component = None
    """Environment that it is checked in."""
    seed: int = 0
    """Of everything that the checks draw."""


def run(arguments: list[str]) -> int:
    """Check, print the name of each check, and return 1 when one fails."""
    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("-"):
        if wants_help(arguments):
            parse(Options, ["--help"], prog="burnish check KIND ID")
        raise ConfigError(f"Say what to check: burnish check KIND ID. Kinds: {', '.join(CHECKED)}.")
    kind, name, rest = arguments[0], arguments[1], arguments[2:]
    if kind not in CHECKED:
        raise UnknownNameError(f"There are no checks for '{kind}'.{suggest(kind, CHECKED)}")
    env_name, rest = take(rest, "env")
    component = registry.load(kind, name)()
    if kind in ALONE and env_name is not None:
        raise ConfigError(f"A component of kind '{kind}' is checked by itself; take out --env {env_name}.")
    chosen = {"component": component}
    if kind not in ALONE:
        chosen["env"] = _env_for(kind, component, env_name)
    options = parse(with_components(Options, chosen), rest, prog=f"burnish check {kind} {name}")
    say(f"{kind} '{name}'" + ("" if kind in ALONE else f" in '{registry.name_of('env', options.env)}'"))
    try:
        with _explained(kind, name):
            passed = check(kind, options.component, options.env, options.seed)
    except CheckError as error:
        say(f"[red]failed:[/] {plain(error)}")
        return 1
    for item in passed:
        say(f"  [green]passed[/] {item}")
    say(f"All {len(passed)} checks passed.")
    return 0


def check(kind: str, component: Any, env: Any, seed: int) -> list[str]:
    """Run the checks of a kind.

    Args:
        kind: One of :data:`CHECKED`.
        component: Configuration of what is checked.
        env: Configuration of the environment that it is checked in; not used for an env.
        seed: Of what the checks draw.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    if kind == "env":
        return check_env(component.build, seed=seed)
    if kind == "controller":
        return check_controller(component.build)
    spec = env_spec_of(env)
    if kind == "sampler":
        return check_sampler(lambda generator: component.build(spec, generator=generator), spec, seed=seed)
    if kind == "teacher":
        several = env.build(NUM_ENVS)
        try:
            return check_teacher(component.build(spec), several, seed=seed)
        finally:
            several.close()
    return _check_learning(kind, component, spec, seed)


def _check_learning(kind: str, component: Any, spec: EnvSpec, seed: int) -> list[str]:
    from burnish.rl.check import check_labeler, check_objective, check_policy

    if kind == "policy":
        return check_policy(component.build(spec, generator=stream(seed, "check")), spec, seed=seed)
    policy = registry.load("policy", "mlp")(hidden=(16,)).build(spec, generator=stream(seed, "check"))
    checked = check_labeler if kind == "labeler" else check_objective
    return checked(component.build(), policy, spec, seed=seed)


def _env_for(kind: str, component: Any, name: str | None) -> Any:
    """Return the named environment; else the default one, or the first that a teacher or policy can be built for."""
    if name is not None:
        return registry.load("env", name)()
    default = registry.load("env", DEFAULT_ENV)()
    if kind not in ("teacher", "policy"):
        return default
    for candidate in (DEFAULT_ENV, *registry.names("env")):
        env = registry.load("env", candidate)()
        try:
            spec = env_spec_of(env)
            component.build(spec) if kind == "teacher" else component.build(spec, generator=stream(0, "check"))
        except BurnishError:
            continue
        return env
    return default


@contextmanager
def _explained(kind: str, name: str) -> Iterator[None]:
    """Turn what a component's own ``build`` raises into a failed check: a stranger's code may raise anything."""
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:
        raise CheckError(
            f"{kind} '{name}' could not be built or checked: it raised {type(error).__name__}: {error}"
        ) from error
