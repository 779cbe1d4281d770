"""Run commands that depend on each other, some at a time; what is done is skipped, so a killed run goes on."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_TIMES = "cpu_times.jsonl"
"""Beside the logs: one row for each job that ended, with what it took."""


@dataclass(frozen=True)
class Job:
    """One command line, of burnish unless ``program`` names another."""

    name: str
    """Unique; also the name of its log."""
    arguments: tuple[str, ...]
    """After ``burnish``, or after the other program."""
    product: Path
    """File whose existence means that the job is done."""
    after: tuple[str, ...] = ()
    """Names of jobs that must be done before."""
    folder: Path | None = None
    """Run folder of a training that is resumed when it exists."""
    program: tuple[str, ...] = ("-m", "burnish")
    """What Python runs: a module, or a script."""
    leftover: Path | None = None
    """Folder of an interrupted try that the program refuses to go on with; it is removed."""

    def command(self) -> list[str]:
        """Return the command, to resume where a run folder is there already."""
        python = [sys.executable, *self.program]
        if self.folder is not None and (self.folder / "config.json").exists():
            return [*python, "train", self.arguments[1], "--resume", str(self.folder)]
        return [*python, *self.arguments]


def evaluation_of(run: Path, name: str = "default") -> Path:
    """Return the file of a run's evaluation."""
    return run / "evaluations" / name / "evaluation.json"


def evaluation_job(name: str, run: Path, options: Sequence[str], after: str) -> Job:
    """Return the job that evaluates a run.

    Args:
        name: Of the run.
        run: Its folder.
        options: Of ``burnish eval``.
        after: Job that makes the run.
    """
    return Job(f"{name}-eval", ("eval", str(run), *options), evaluation_of(run), after=(after,))


def training_jobs(
    name: str, run: Path, recipe: Sequence[str], iterations: int, evaluate: Sequence[str], after: str
) -> list[Job]:
    """Return the jobs that post-train a policy in a run folder and evaluate it.

    Args:
        name: Of the run.
        run: Its folder.
        recipe: ``train``, the recipe and its options.
        iterations: Of the training.
        evaluate: Options of ``burnish eval``.
        after: Job that must be done before.
    """
    arguments = (*recipe, "--out", str(run), "--numbers.iterations", str(iterations))
    product = run / f"checkpoints/{iterations:06d}/burnish.json"
    train = Job(name, arguments, product, after=(after,), folder=run)
    return [train, evaluation_job(name, run, evaluate, name)]


def run_jobs(jobs: Sequence[Job], logs: Path, parallel: int, environment: Mapping[str, str] | None = None) -> None:
    """Run all jobs in order of the list, ``parallel`` at a time.

    Args:
        jobs: What to run.
        logs: Folder of their output.
        parallel: How many at once.
        environment: Further environment variables.

    Raises:
        SystemExit: If a job fails; names its log.
    """
    logs.mkdir(parents=True, exist_ok=True)
    done = {job.name for job in jobs if job.product.exists()}
    running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
    fixed = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    variables = {**os.environ, **fixed, **(environment or {})}
    while len(done) < len(jobs):
        for name, (job, process, begin) in list(running.items()):
            if not _ended(process, logs, name):
                continue
            del running[name]
            if process.returncode or not job.product.exists():
                raise SystemExit(f"{name} failed with status {process.returncode}; see {logs / name}.log")
            done.add(name)
            print(f"{time.strftime('%H:%M:%S')} {name} done in {time.monotonic() - begin:.0f} s", flush=True)
        for job in jobs:
            if len(running) >= parallel:
                break
            if job.name not in done and job.name not in running and set(job.after) <= done:
                if job.leftover is not None:
                    shutil.rmtree(job.leftover, ignore_errors=True)
                with (logs / f"{job.name}.log").open("ab") as log:
                    process = subprocess.Popen(job.command(), stdout=log, stderr=subprocess.STDOUT, env=variables)
                running[job.name] = (job, process, time.monotonic())
        time.sleep(0.5)


def cpu_hours(logs: Path) -> float:
    """Return the CPU time [h] of all jobs that ended by themselves, without those of an interrupted try."""
    file = logs / CPU_TIMES
    rows = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return float(sum(json.loads(row)["cpu_seconds"] for row in rows)) / 3600


def _ended(process: "subprocess.Popen[bytes]", logs: Path, name: str) -> bool:
    """Return whether a job ended; the CPU time it took is then written down."""
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if pid == 0:
        return False
    process.returncode = os.waitstatus_to_exitcode(status)
    with (logs / CPU_TIMES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2)}) + "\n")
    return True
