"""``burnish deploy``: serve a policy, drive a robot with it at a fixed rate, replay or export a log, probe a server."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.acting import KEY_VARIABLE, load_acting, of_checkpoint, with_key
from burnish.cli.console import plain, say
from burnish.cli.options import parse, take, wants_help
from burnish.core.errors import ConfigError, require, suggest
from burnish.deploy.client import probe
from burnish.deploy.serving import Identity
from burnish.deploy.ticklog import replay

if TYPE_CHECKING:
    from burnish.cli.building import Loaded

PROTOCOLS = ("openpi", "lerobot", "gr00t")
"""What a policy can be served over."""
USAGE = """usage: burnish deploy CHECKPOINT --protocol openpi|lerobot|gr00t \\[options]   serve it to clients
       burnish deploy CHECKPOINT --env ID \\[options]                 run it against an environment at its control rate
       burnish deploy CHECKPOINT --robot lerobot:TYPE|ros2 \\[options]   drive a robot with it
       burnish deploy --remote ws://HOST:PORT --env ID|--robot ...   the same, with a policy behind an openpi server
       burnish deploy CHECKPOINT --replay LOGDIR \\[--tolerance X]     ask it again what a run asked; status 1 on drift
       burnish deploy export-log LOGDIR --out DATASET               recorded runs as a LeRobotDataset to train on
       burnish deploy check URL \\[options]                           what a running server is, and how fast

CHECKPOINT is a run folder, a checkpoint folder, or what burnish export wrote (which needs no torch).
Options of each: add --help."""


@dataclass(frozen=True)
class ProbeOptions:
    """Check what a burnish policy server says of itself, and ask it for actions on made-up observations."""

    requests: int = 50
    """Round trips that are measured."""
    api_key: str = ""
    """Its key; the environment variable BURNISH_API_KEY when empty."""


@dataclass(frozen=True)
class ReplayOptions:
    """Ask a policy again for every decision of a run, and compare with what was logged; status 1 when it differs."""

    tolerance: float = 0.0
    """Largest absolute difference that counts as none, in action units; 0 wants every bit equal."""


def run(arguments: list[str]) -> int:
    """Deploy."""
    if not arguments or arguments[0] in ("-h", "--help"):
        say(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "check":
        return _probe(arguments[1:])
    if arguments[0] == "export-log":
        from burnish.cli.export_log import run as export_log

        return export_log(arguments[1:])
    url, rest = take(arguments, "remote")
    path = Path(rest.pop(0)) if rest and not rest[0].startswith("-") else None
    if (path is None) == (url is None):
        raise ConfigError("Name what acts, one of both: a checkpoint folder, or --remote ws://HOST:PORT.")
    return _act(path, url, rest)


def _act(path: Path | None, url: str | None, rest: list[str]) -> int:
    protocol, rest = take(rest, "protocol")
    log, rest = take(rest, "replay")
    drives = [name for name in ("env", "robot") if any(x == f"--{name}" or x.startswith(f"--{name}=") for x in rest)]
    if (protocol is not None) + (log is not None) + len(drives) > 1:
        raise ConfigError("Choose one of --protocol, --env, --robot and --replay.")
    if drives:
        from burnish.cli.runtime import run_local

        return run_local(path, url, rest)
    if protocol is not None and path is not None:
        return _serve(path, protocol, rest)
    if log is not None and path is not None:
        return _replay(path, Path(log), rest)
    if url is not None and (protocol or log):
        raise ConfigError(
            "--remote goes with --env or --robot; a server is not served again, and its log is replayed here."
        )
    say(USAGE)
    return 0 if wants_help(rest) else 2


def protocol_module(name: str) -> Any:
    """Return the module that serves a protocol, which has ``Config``, ``Server`` and ``serve_forever``.

    Raises:
        ConfigError: If there is no such protocol.
        MissingExtraError: If its package is not installed.
    """
    match name:
        case "openpi":
            from burnish.deploy import openpi

            return openpi
        case "lerobot":
            require("grpc", "serve", "--protocol lerobot")
            from burnish.deploy import lerobot_server

            return lerobot_server
        case "gr00t":
            require("zmq", "serve", "--protocol gr00t")
            from burnish.deploy import gr00t

            return gr00t
        case _:
            raise ConfigError(f"There is no protocol '{name}'.{suggest(name, PROTOCOLS)}")


def _serve(path: Path, protocol: str, arguments: list[str]) -> int:
    module = protocol_module(protocol)
    config = with_key(parse(module.Config, arguments, prog=f"burnish deploy CHECKPOINT --protocol {protocol}"))
    acting = load_acting(path)
    server = module.Server(acting.policy, acting.identity(), config)
    module.serve_forever(server, lambda ready: say(_ready_text(ready.url, bool(config.api_key))))
    say("Stopped.")
    return 0


def _replay(path: Path, log: Path, arguments: list[str]) -> int:
    options = parse(ReplayOptions, arguments, prog="burnish deploy CHECKPOINT --replay LOGDIR")
    if not options.tolerance >= 0:
        raise ConfigError(f"tolerance must be a number of at least 0, found {options.tolerance}.")
    report = replay(load_acting(path).policy, log, tolerance=options.tolerance)
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


def identity_of(loaded: "Loaded") -> Identity:
    """Return what clients are told of a checkpoint."""
    return of_checkpoint(loaded).identity()


def _ready_text(url: str, keyed: bool) -> str:
    key = "with the API key" if keyed else "without a key (this machine only)"
    health = f" Health: {url.replace('ws', 'http', 1)}/healthz." if url.startswith("ws") else ""
    return f"Serving at {url} {key}.{health} Stop with Ctrl-C."
