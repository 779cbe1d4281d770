"""``burnish deploy CHECKPOINT``: serve a policy to robots, run it at a fixed rate, replay a log, or probe a server."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.cli.building import RANGES, Loaded, env_spec_of, load_checkpoint
from burnish.cli.console import plain, say
from burnish.cli.options import parse, take, wants_help
from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import fingerprint
from burnish.deploy.client import probe
from burnish.deploy.openpi import Config, Identity, Server, serve_forever
from burnish.deploy.ticklog import replay

PROTOCOLS = ("openpi",)
"""What a policy can be served over."""
USAGE = """usage: burnish deploy CHECKPOINT --protocol openpi \\[options]   serve it to clients
       burnish deploy CHECKPOINT --env ID \\[options]            run it against an environment at its control rate
       burnish deploy CHECKPOINT --replay LOGDIR               ask it again what a run asked; status 1 when it differs
       burnish deploy check URL \\[options]                      ask a running server what it is, and how fast

Options of each: add --help."""
KEY_VARIABLE = "BURNISH_API_KEY"
"""Environment variable that holds the API key, so that it need not stand in a command line."""


@dataclass(frozen=True)
class ProbeOptions:
    """Ask a burnish policy server for its metadata and for actions on made-up observations."""

    requests: int = 50
    """Round trips that are measured."""
    api_key: str = ""
    """Its key; the environment variable BURNISH_API_KEY when empty."""


def run(arguments: list[str]) -> int:
    """Deploy."""
    if not arguments or arguments[0].startswith("-"):
        say(USAGE)
        return 0 if wants_help(arguments) else 2
    if arguments[0] == "check":
        return _probe(arguments[1:])
    path, rest = Path(arguments[0]), arguments[1:]
    protocol, rest = take(rest, "protocol")
    log, rest = take(rest, "replay")
    runs = any(item == "--env" or item.startswith("--env=") for item in rest)
    if (protocol is not None) + (log is not None) + runs > 1:
        raise ConfigError("Choose one of --protocol, --env and --replay.")
    if protocol is not None:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"There is no protocol '{protocol}'.{suggest(protocol, PROTOCOLS)}")
        return _serve(path, rest)
    if log is not None:
        return _replay(path, Path(log), rest)
    if runs:
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
    say("Stopped.")
    return 0


def _replay(path: Path, log: Path, arguments: list[str]) -> int:
    if arguments:
        raise ConfigError(f"--replay takes no further options; take out {' '.join(arguments)}.")
    report = replay(load_checkpoint(path).policy, log)
    say(plain(report.text()))
    return 0 if report.same else 1


def _probe(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        if wants_help(arguments):
            parse(ProbeOptions, ["--help"], prog="burnish deploy check URL")
        raise ConfigError("Name the server: burnish deploy check ws://127.0.0.1:8000")
    options = parse(ProbeOptions, arguments[1:], prog="burnish deploy check URL")
    if options.requests < 1:
        raise ConfigError(f"requests must be at least 1, found {options.requests}.")
    key = options.api_key or os.environ.get(KEY_VARIABLE, "")
    say(plain(probe(arguments[0], api_key=key, requests=options.requests).text()))
    return 0


def identity_of(loaded: Loaded) -> Identity:
    """Return what clients are told of a checkpoint."""
    spec = env_spec_of(loaded.env_config)
    ranges: Mapping[str, Any] = loaded.description.get(RANGES, {})
    return Identity(
        control_dt=spec.control_dt,
        env_id=spec.id,
        fingerprint=fingerprint(loaded.description),
        replan_steps=loaded.replan_steps,
        statistics={key: item for key, item in ranges.items() if key in loaded.policy.spec.observation} or None,
    )


def _ready_text(url: str, keyed: bool) -> str:
    key = "with the API key" if keyed else "without a key (this machine only)"
    return f"Serving at {url} {key}. Health: {url.replace('ws', 'http', 1)}/healthz. Stop with Ctrl-C."
