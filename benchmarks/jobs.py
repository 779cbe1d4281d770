"""Run commands that depend on each other, some at a time; what is done is skipped, so a killed run goes on."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """One command line of burnish."""

    name: str
    """Unique; also the name of its log."""
    arguments: tuple[str, ...]
    """After ``burnish``."""
    product: Path
    """File whose existence means that the job is done."""
    after: tuple[str, ...] = ()
    """Names of jobs that must be done before."""
    folder: Path | None = None
    """Run folder of a training that is resumed when it exists."""

    def command(self) -> list[str]:
        """Return the command, to resume where a run folder is there already."""
        burnish = [sys.executable, "-m", "burnish"]
        if self.folder is not None and (self.folder / "config.json").exists():
            return [*burnish, "train", self.arguments[1], "--resume", str(self.folder)]
        return [*burnish, *self.arguments]


def run_jobs(jobs: Sequence[Job], logs: Path, parallel: int) -> None:
    """Run all jobs in order of the list, ``parallel`` at a time.

    Raises:
        SystemExit: If a job fails; names its log.
    """
    logs.mkdir(parents=True, exist_ok=True)
    done = {job.name for job in jobs if job.product.exists()}
    running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    while len(done) < len(jobs):
        for name, (job, process, begin) in list(running.items()):
            if process.poll() is None:
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
                with (logs / f"{job.name}.log").open("ab") as log:
                    process = subprocess.Popen(job.command(), stdout=log, stderr=subprocess.STDOUT, env=environment)
                running[job.name] = (job, process, time.monotonic())
        time.sleep(0.5)
