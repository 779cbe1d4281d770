"""``burnish deploy CHECKPOINT``: serve a policy to robots, or run it at a fixed rate against an environment."""

import dataclasses
import os
from pathlib import Path

from burnish.cli.building import Loaded, env_spec_of, load_checkpoint
from burnish.cli.console import say
from burnish.cli.options import parse, take, wants_help
from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import fingerprint
from burnish.deploy.openpi import Config, Identity, Server, serve_forever

PROTOCOLS = ("openpi",)
"""What a policy can be served over."""
USAGE = """usage: burnish deploy CHECKPOINT --protocol openpi [options]   serve it to clients
       burnish deploy CHECKPOINT --env ID [options]            run it against an environment at its control rate

Options of either: add --help."""
KEY_VARIABLE = "BURNISH_API_KEY"
"""Environment variable that holds the API key, so that it need not stand in a command line."""


def run(arguments: list[str]) -> int:
    """Deploy."""
    if not arguments or arguments[0].startswith("-"):
        say(USAGE)
        return 0 if wants_help(arguments) else 2
    path, rest = Path(arguments[0]), arguments[1:]
    protocol, rest = take(rest, "protocol")
    if protocol is not None:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"There is no protocol '{protocol}'.{suggest(protocol, PROTOCOLS)}")
        return _serve(path, rest)
    if any(item == "--env" or item.startswith("--env=") for item in rest):
        from burnish.cli.runtime import run_against

        return run_against(path, rest)
    say(USAGE)
    return 0 if wants_help(rest) else 2


def _serve(path: Path, arguments: list[str]) -> int:
    config = parse(Config, arguments, prog="burnish deploy CHECKPOINT --protocol openpi")
    if not config.api_key and os.environ.get(KEY_VARIABLE):
        config = dataclasses.replace(config, api_key=os.environ[KEY_VARIABLE])
    loaded = load_checkpoint(path)
    server = Server(loaded.policy, identity_of(loaded), config)
    serve_forever(server, lambda ready: say(_ready_text(ready.url, bool(config.api_key))))
    return 0


def identity_of(loaded: Loaded) -> Identity:
    """Return what clients are told of a checkpoint."""
    spec = env_spec_of(loaded.env_config)
    return Identity(
        control_dt=spec.control_dt,
        env_id=spec.id,
        fingerprint=fingerprint(loaded.description),
        replan_steps=loaded.replan_steps,
    )


def _ready_text(url: str, keyed: bool) -> str:
    key = "with the API key" if keyed else "without a key (this machine only)"
    return f"Serving at {url} {key}. Health: {url.replace('ws', 'http', 1)}/healthz. Stop with Ctrl-C."
