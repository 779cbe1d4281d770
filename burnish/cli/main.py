"""``burnish``: reads the command, loads only what it needs, and turns errors into sentences."""

import os
import sys
from collections.abc import Callable, Sequence

from burnish import __version__
from burnish.cli.threads import set_thread_defaults
from burnish.core.errors import BurnishError, suggest

COMMANDS = {
    "demo": "the main job end to end: pretrain, post-train, evaluate, report, serve",
    "record": "run an expert or a policy and write a LeRobotDataset",
    "train": "run a recipe: pretrain a policy, or post-train it by reinforcement learning",
    "eval": "evaluate a checkpoint on fixed starts, with intervals, videos and a report",
    "compare": "compare two evaluations pair by pair, or say why they cannot be compared",
    "deploy": "serve a checkpoint to robots, or run it at a fixed rate against an environment",
    "export": "write a checkpoint as ONNX with its specs",
    "list": "list environments, policies, teachers, parts and recipes",
    "check": "run the contract checks on a component, also one of your own",
    "doctor": "say what works on this machine and how to mend the rest",
}
"""Command to its line of help."""

EPILOGUE = """Every command explains itself with --help. Options of a chosen component are shown once it is chosen:
  burnish train pac_act --env contact/contour --help"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program name; None for those of the process.

    Returns:
        Exit status: 0, 1 for a command that found a problem, 2 for wrong use.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"burnish {__version__}\n")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        sys.stderr.write(f"burnish: there is no command '{command}'.{suggest(command, COMMANDS)}\n")
        return 2
    set_thread_defaults()
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a component of one's own is named by its module, from where one works
    try:
        return _load(command)(rest)
    except BurnishError as error:
        sys.stderr.write(f"burnish {command}: {error}\n")
        return 2
    except BrokenPipeError:  # whoever read the output has left, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        sys.stderr.write(f"burnish {command}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nburnish: interrupted; what was finished is on disk.\n")
        return 130


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"burnish {__version__}: reinforcement-learning post-training of embodied policies", ""]
    lines += ["usage: burnish COMMAND [options]", ""]
    lines += [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", EPILOGUE, ""])


def _load(command: str) -> Callable[[list[str]], int]:
    match command:
        case "demo":
            from burnish.cli.demo import run
        case "record":
            from burnish.cli.record import run
        case "train":
            from burnish.cli.train import run
        case "eval":
            from burnish.cli.evaluate import run
        case "compare":
            from burnish.cli.compare import run
        case "deploy":
            from burnish.cli.deploy import run
        case "export":
            from burnish.cli.export import run
        case "list":
            from burnish.cli.listing import run
        case "check":
            from burnish.cli.check import run
        case _:
            from burnish.cli.doctor import run
    return run


if __name__ == "__main__":
    sys.exit(main())
