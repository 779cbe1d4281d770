"""What every benchmark shares: one process per competitor, interleaved rounds, medians of CPU time, one JSON.

A competitor is a function that prepares its work and returns another that does one round of it and says how much was
done. Preparing, importing and warming up are not timed. CPU time counts the process, its threads and its children, so
what another program does on the machine disturbs all competitors alike and the ratio little.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

for variable, setting in (
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_WAIT_POLICY", "PASSIVE"),
    ("HF_HUB_OFFLINE", "1"),
    ("LP_NUM_THREADS", "0"),
    ("MUJOCO_GL", "egl"),
    ("TQDM_DISABLE", "1"),
):
    os.environ.setdefault(variable, setting)  # the same for everybody; workers inherit it

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("burnish", "gymnasium", "mujoco", "numpy", "torch")

type Round = Callable[[], float]
"""Does one round of work and returns how much: environment steps, batches, ..."""
type Competitor = Callable[[], Round]


@dataclass(frozen=True)
class Timing:
    """CPU and wall seconds per unit of work: medians over rounds."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    rounds: int
    quick: bool
    output: Path


def options(name: str, about: str | None, *, rounds: int = 5, arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line of a benchmark."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, to see that everything works")
    parser.add_argument("--rounds", type=int, default=0, help=f"interleaved rounds, {rounds} unless told")
    parser.add_argument("--output", type=Path, default=None, help="JSON; with --quick nothing is written unless told")
    found = parser.parse_args(arguments)
    output = found.output or (Path(os.devnull) if found.quick else RESULTS / f"{name}.json")
    return Options(found.rounds or (1 if found.quick else rounds), found.quick, output)


def measure(competitors: Mapping[str, Competitor], rounds: int) -> dict[str, Timing]:
    """Return the seconds per unit of work of each competitor.

    Args:
        competitors: Top-level functions (or ``functools.partial`` of them), each run in a process of its own.
        rounds: Interleaved rounds (A B C A B C ...), after one round each that is not counted.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[str, tuple[Any, Any]] = {}
    samples: dict[str, list[Timing]] = {name: [] for name in competitors}
    try:
        for name, competitor in competitors.items():
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(competitor, there), name=name)
            process.start()
            there.close()
            workers[name] = process, here
            _answer(name, here)
        for _ in range(rounds):
            for name, (_, pipe) in workers.items():
                pipe.send("go")
                samples[name].append(_answer(name, pipe))
    finally:
        for process, pipe in workers.values():
            pipe.close()
            process.join(20)
            if process.is_alive():
                process.terminate()
    return {
        name: Timing(statistics.median(item.cpu for item in items), statistics.median(item.wall for item in items))
        for name, items in samples.items()
    }


def _answer(name: str, pipe: Any) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        raise SystemExit(f"The process of '{name}' ended; its error is above.") from None
    return answer


def _work(competitor: Competitor, pipe: Any) -> None:
    """Prepare, run one round to warm up, then one round whenever told; files go to a folder that is removed."""
    one_torch_thread()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        os.chdir(folder)
        tempfile.tempdir = folder
        _serve(competitor, pipe)
        os.chdir("/")


def _serve(competitor: Competitor, pipe: Any) -> None:
    run = competitor()
    run()
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            break
        begin, wall = cpu_seconds(), time.perf_counter()
        work = run()
        pipe.send(Timing((cpu_seconds() - begin) / work, (time.perf_counter() - wall) / work))
    close = getattr(run, "close", None)
    if close is not None:
        close()


class Paced:
    """A training loop that goes on for one round whenever called: its ``report`` waits in between."""

    def __init__(self, train: Callable[[Callable[[Any], None]], None], reports: int, work: float) -> None:
        """Begin nothing yet.

        Args:
            train: Runs the loop, calling what it is given after every step that the loop reports.
            reports: Reports in a round.
            work: Amount of work in a round.
        """
        self._reports, self._work = reports, work
        self._go, self._pause = threading.Semaphore(0), threading.Semaphore(0)
        self._count = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(train,), daemon=True)
        self._thread.start()

    def __call__(self) -> float:
        """Run one round."""
        self._go.release()
        self._pause.acquire()
        if self._error is not None:
            raise self._error
        return self._work

    def _run(self, train: Callable[[Callable[[Any], None]], None]) -> None:
        self._go.acquire()
        try:
            train(self._report)
            raise RuntimeError("The loop ended before the benchmark did.")
        except BaseException as error:
            self._error = error
            self._pause.release()

    def _report(self, _: Any) -> None:
        self._count += 1
        if self._count % self._reports == 0:
            self._pause.release()
            self._go.acquire()


def one_torch_thread() -> None:
    """Give torch one thread where it is installed."""
    import torch

    torch.set_num_threads(1)


def cpu_seconds() -> float:
    """Return CPU seconds of this process, of children that ended, and of living descendants."""
    ended = os.times()
    ticks = 0
    for pid in _descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text(encoding="utf-8").split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


@dataclass(frozen=True)
class Case:
    """One comparison of a benchmark."""

    ours: float
    """Figure of burnish."""
    peers: dict[str, float]
    """Figures of the peers."""
    goal: float | None = None
    """Ratio to reach against the best peer that counts."""
    against: str = ""
    """The peer that the goal is about; "" for the best one."""
    lower_is_better: bool = True

    @property
    def peer(self) -> str:
        """Name of the peer that ``ratio`` is against."""
        best = min if self.lower_is_better else max
        return self.against or best(self.peers, key=lambda name: self.peers[name])

    @property
    def ratio(self) -> float:
        """How many times better than the peer."""
        peer = self.peers[self.peer]
        return peer / self.ours if self.lower_is_better else self.ours / peer


def write(
    name: str,
    cases: Mapping[str, Case],
    chosen: Options,
    *,
    unit: str,
    about: str,
    packages: Sequence[str] = (),
    note: str = "",
    **more: Any,
) -> None:
    """Print the ratios and write ``results/<name>.json``; a single case is written as plain numbers."""
    for key, case in cases.items():
        goal = "" if case.goal is None else f" (goal {case.goal:g}x)"
        peers = ", ".join(f"{peer} {figure:.4g}" for peer, figure in case.peers.items())
        print(f"{name} {key}: burnish {case.ours:.4g} {unit}; {peers}; {case.ratio:.2f}x {case.peer}{goal}", flush=True)
    single = len(cases) == 1
    result = {
        "command": f"uv run --group bench python benchmarks/run.py {name}",
        "about": about,
        "machine": machine(),
        "versions": versions((*PACKAGES, *packages)),
        "rounds": chosen.rounds,
        "ours": _shape(single, {key: rounded(case.ours) for key, case in cases.items()}),
        "peers": {
            peer if single else f"{key}.{peer}": rounded(figure)
            for key, case in cases.items()
            for peer, figure in case.peers.items()
        },
        "ratio": _shape(single, {key: rounded(case.ratio, 3) for key, case in cases.items()}),
        "against": _shape(single, {key: case.peer for key, case in cases.items()}),
        "goal": _shape(single, {key: case.goal for key, case in cases.items()}),
        "unit": unit,
        "note": note,
        **more,
    }
    if chosen.output == Path(os.devnull):
        return
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _shape(single: bool, entries: Mapping[str, Any]) -> Any:
    return next(iter(entries.values())) if single else dict(entries)


def rounded(figure: float, digits: int = 4) -> float:
    """Return a figure with so many significant digits."""
    return float(f"{figure:.{digits}g}")


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": processor or platform.machine(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(item, 1) for item in os.getloadavg()],
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed version of each package."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def microseconds(timings: Mapping[str, Timing], ours: str = "burnish") -> tuple[float, dict[str, float]]:
    """Return CPU microseconds per unit of work: ours, and those of the peers."""
    figures = {name: 1e6 * item.cpu for name, item in timings.items()}
    return figures.pop(ours), figures


def wall(timings: Mapping[str, Timing]) -> dict[str, dict[str, float]]:
    """Return all timings for the JSON, as information."""
    return {name: {key: rounded(item) for key, item in asdict(timing).items()} for name, timing in timings.items()}


def say(text: str) -> None:
    """Print a remark beside the results."""
    print(text, file=sys.stderr, flush=True)
