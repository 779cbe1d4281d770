"""``burnish export CHECKPOINT``: the policy as ONNX with its specs, and the proof that it answers the same."""

from dataclasses import dataclass
from pathlib import Path

from burnish.cli.building import load_checkpoint
from burnish.cli.console import plain, say
from burnish.cli.options import parse, wants_help
from burnish.core.errors import ConfigError
from burnish.rl.export import export


@dataclass(frozen=True)
class Options:
    """Write model.onnx, spec.json and transforms.json; what reads them needs neither torch nor burnish."""

    out: str = ""
    """New folder; onnx beside the checkpoint when empty."""
    samples: int = 32
    """Observations that are compared with the original."""


def run(arguments: list[str]) -> int:
    """Export."""
    if not arguments or arguments[0].startswith("-"):
        if wants_help(arguments):
            parse(Options, ["--help"], prog="burnish export CHECKPOINT")
        raise ConfigError("Name the checkpoint: burnish export CHECKPOINT [options]; see burnish export --help.")
    path = Path(arguments[0])
    options = parse(Options, arguments[1:], prog="burnish export CHECKPOINT")
    loaded = load_checkpoint(path)
    folder = Path(options.out) if options.out else path / "onnx"
    report = export(loaded.policy, folder, description=loaded.description, samples=options.samples)
    say(f"Exported to {folder}\n{plain(report.text())}")
    return 0
