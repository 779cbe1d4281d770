"""``burnish export CHECKPOINT``: the policy as ONNX with its specs, and the proof that it answers the same."""

from dataclasses import dataclass
from pathlib import Path

from burnish.cli.building import load_checkpoint
from burnish.cli.console import plain, say
from burnish.cli.options import parse, wants_help
from burnish.core.errors import ConfigError
from burnish.evaluation.result import FILE_NAME, EvaluationResult, interval_text, number, reading_order
from burnish.rl.card import Evaluated
from burnish.rl.export import export


@dataclass(frozen=True)
class Options:
    """Write model.onnx, spec.json, transforms.json and a README; what reads them needs neither torch nor burnish."""

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
    report = export(
        loaded.policy,
        folder,
        description=loaded.description,
        evaluations=evaluations_of(path, loaded.directory),
        samples=options.samples,
    )
    say(f"Exported to {folder}\n{plain(report.text())}")
    return 0


def evaluations_of(path: Path, checkpoint: Path) -> list[Evaluated]:
    """Return the evaluations below a run or checkpoint folder that are of this very checkpoint."""
    found = []
    for file in sorted((path / "evaluations").glob(f"*/{FILE_NAME}")):
        result = EvaluationResult.load(file)
        if Path(str(result.policy.get("checkpoint", ""))).name != checkpoint.name:
            continue
        rows = [
            (name, number(item.value), interval_text(item), result.metric_specs[name].unit)
            for name, item in (
                (name, result.metrics[name]) for name in reading_order(result.metrics, result.metric_specs)
            )
        ]
        found.append(Evaluated(file.parent.name, result.fingerprint, len(result.episodes), rows))
    return found
