"""``burnish doctor``: what works on this machine, and what to do about what does not."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from burnish import __version__
from burnish.cli.console import plain, say, table
from burnish.cli.options import parse

EXTRAS = {
    "lerobot": "ACT policies, LeRobotDataset in and out",
    "warp": "rendering without any GL library",
    "onnx": "export, and inference without torch",
    "libero": "LIBERO manipulation",
    "splat": "Gaussian splatting on CUDA",
    "geometry": "scene building from meshes and point clouds",
    "alpasim": "AlpaSim driving",
    "ray": "more than one machine",
    "viz": "3D viewing of runs",
    "wandb": "logging to Weights & Biases",
}
"""Extra to what it is for."""

Status = Literal["ok", "missing", "problem", "note"]
STYLE = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "problem": "[red]problem[/]", "note": "note"}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    status: Status
    text: str
    """What was found, and what to do."""


@dataclass(frozen=True)
class Options:
    """Check this machine: interpreter, threads, GPU, rendering, extras, disk."""

    rendering: bool = True
    """Try every rendering backend in a process of its own (some seconds)."""


def examine(*, rendering: bool = True) -> list[Finding]:
    """Return all findings; a check that itself fails becomes a finding."""
    checks: list[Callable[[], list[Finding]]] = [_interpreter, _threads, _packages, _gpu, _extras, _disk]
    if rendering:
        checks.insert(4, _rendering)
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:
            findings.append(Finding(check.__name__.strip("_"), "problem", f"{type(error).__name__}: {error}"))
    return findings


def _interpreter() -> list[Finding]:
    version = platform.python_version()
    good = (3, 12) <= sys.version_info[:2] < (3, 14)
    text = f"Python {version} on {platform.system()} {platform.machine()}, burnish {__version__}"
    return [Finding("python", "ok" if good else "problem", text if good else f"{text}; needs 3.12 or 3.13")]


def _threads() -> list[Finding]:
    cores = os.cpu_count() or 1
    count, wait = os.environ.get("OMP_NUM_THREADS", "unset"), os.environ.get("OMP_WAIT_POLICY", "unset")
    text = f"{cores} cores; {count} compute thread(s), OpenMP waits {wait}"
    if count != "1" and wait.upper() != "PASSIVE":
        return [Finding("threads", "problem", f"{text}: threads that spin slow small networks up to tenfold. "
                        "Set OMP_WAIT_POLICY=PASSIVE, or OMP_NUM_THREADS=1.")]  # fmt: skip
    return [Finding("threads", "ok", f"{text}. More for large networks: BURNISH_THREADS={cores} burnish ...")]


def _packages() -> list[Finding]:
    names = ("torch", "mujoco", "gymnasium", "numpy")
    return [Finding("versions", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in names))]


def _gpu() -> list[Finding]:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return [Finding("gpu", "ok", f"{names}, CUDA {torch.version.cuda}")]
    return [Finding("gpu", "note", "no CUDA device: everything runs on the CPU, which the defaults are made for")]


def _rendering() -> list[Finding]:
    from burnish.envs.rendering import BACKENDS, INSTALL, probe

    findings = []
    for name in BACKENDS:
        trouble = probe(name)
        text = f"{trouble}. Install: {INSTALL[name]}" if trouble else "draws MuJoCo scenes offscreen"
        findings.append(Finding(f"render: {name}", "missing" if trouble else "ok", text))
    if all(item.status == "missing" for item in findings):
        findings.append(Finding("rendering", "problem", "no backend works: no camera images and no videos"))
    return findings


def _extras() -> list[Finding]:
    findings = []
    for extra, purpose in EXTRAS.items():
        missing = missing_packages(extra)
        text = f"{purpose}; lacks {', '.join(missing)}: pip install 'burnish[{extra}]'" if missing else purpose
        findings.append(Finding(f"extra: {extra}", "missing" if missing else "ok", text))
    return findings


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed, from burnish's own metadata."""
    missing = []
    for line in metadata.requires("burnish") or ():
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement.strip())
        if name and f'extra == "{extra}"' in marker.replace("'", '"'):
            try:
                metadata.version(name.group())
            except metadata.PackageNotFoundError:
                missing.append(name.group())
    return missing


def _disk() -> list[Finding]:
    free = shutil.disk_usage(".").free / 2**30
    text = f"{free:.1f} GiB free in this folder"
    return [Finding("disk", "ok" if free > 2 else "problem", text)]


def run(arguments: list[str]) -> int:
    """Print the findings; status 1 when something is a problem."""
    options = parse(Options, arguments, prog="burnish doctor")
    findings = examine(rendering=options.rendering)
    table(
        "What works here",
        ("check", "", "found"),
        [(item.name, STYLE[item.status], plain(item.text)) for item in findings],
    )
    problems = [item for item in findings if item.status == "problem"]
    say("\nAll that is needed works." if not problems else f"\n{len(problems)} problem(s) to mend, see above.")
    return 1 if problems else 0
