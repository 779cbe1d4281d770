"""The README of an exported policy: what it is, how it was measured, what goes in and comes out, and how to run it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.core.spec import ArraySpec, PolicySpec, fingerprint


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of the very checkpoint that is exported."""

    name: str
    """Which."""
    protocol: str
    """Fingerprint of its protocol: numbers of two policies are comparable where it is equal."""
    episodes: int
    """How many."""
    rows: Sequence[tuple[str, str, str, str]]
    """(metric, value, 95 % interval, unit)."""


def model_card(
    spec: PolicySpec, description: Mapping[str, Any], parity: str, evaluations: Sequence[Evaluated] = ()
) -> str:
    """Return the card as markdown with a front matter that model hubs read.

    Args:
        spec: Of the policy.
        description: What the checkpoint says of itself.
        parity: How graph and policy compare, in one line.
        evaluations: Of this checkpoint.
    """
    env = description.get("env_spec", {})
    dt = float(env.get("control_dt", 0.0))
    replan = description.get("replan_steps", spec.chunk_steps)
    lines = [
        *("---", "library_name: burnish", "pipeline_tag: robotics", "tags: [robotics, onnx, burnish]", "---", ""),
        f"# {spec.id} for {env.get('id', 'an unnamed environment')}",
        "",
        "| | |",
        "| --- | --- |",
        f"| tasks | {', '.join(env.get('tasks', ())) or 'not told'} |",
        f"| trained by | {description.get('recipe', 'not told')}, iteration {description.get('iteration', '?')} |",
        f"| checkpoint | `{fingerprint(description)}` |",
        f"| action chunk | {spec.chunk_steps} actions, of which {replan} are executed"
        + (f", {dt:g} s each |" if dt else " |"),
        f"| reads an instruction | {'yes' if spec.reads_task else 'no'} |",
        "",
        "## What goes in and comes out",
        "",
        "Normalisation is inside the graph: values are in the units below.",
        "",
        "| name | shape | dtype | unit | frame | entries |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(key, item) for key, item in spec.observation.items()),
        _row("action_chunk (out)", spec.action, chunk=spec.chunk_steps),
        "",
        "## How it was measured",
        "",
    ]
    if not evaluations:
        lines += ["This checkpoint has no evaluation beside it. `burnish eval` makes one; export again afterwards.", ""]
    for item in evaluations:
        lines += [f"**{item.name}**: {item.episodes} episodes, protocol `{item.protocol}`.", ""]
        lines += ["| metric | value | 95 % interval | unit |", "| --- | ---: | ---: | --- |"]
        lines += [f"| {' | '.join(row)} |" for row in item.rows]
        lines += [""]
    lines += [
        "These figures are of the environment named above, not of a real robot.",
        "",
        f"Export: {parity}.",
        "",
        "## How to run it",
        "",
        "```",
        "burnish deploy THIS_FOLDER --env " + str(env.get("id", "ID")) + "             # in the simulator",
        "burnish deploy THIS_FOLDER --robot lerobot:TYPE --dry-run     # beside a robot, sending nothing",
        "burnish deploy THIS_FOLDER --protocol openpi                  # to clients",
        "```",
        "",
        "```python",
        "from pathlib import Path",
        "from burnish.deploy.exported import ExportedPolicy",
        "",
        'policy = ExportedPolicy(Path("THIS_FOLDER"))  # needs numpy and onnxruntime; no torch',
        "```",
        "",
        "`spec.json` holds all of this for programs.",
        "",
    ]
    return "\n".join(lines)


def _row(name: str, spec: ArraySpec, chunk: int = 0) -> str:
    shape = [1, *([chunk] if chunk else []), *spec.shape]
    return f"| `{name}` | {shape} | {spec.dtype} | {spec.unit} | {spec.frame} | {', '.join(spec.names)} |"
