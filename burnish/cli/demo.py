"""``burnish demo``: the main job from demonstrations to a served policy, each stage by the command that anyone uses."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from burnish.cli import compare, evaluate, record, train
from burnish.cli.building import load_checkpoint
from burnish.cli.console import console, say, table
from burnish.cli.deploy import identity_of
from burnish.cli.options import parse
from burnish.core.errors import ConfigError, DatasetError, require
from burnish.core.spec import TASK_KEY, ArraySpec
from burnish.data.durable import durable_text
from burnish.deploy.client import Client
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Server, running
from burnish.evaluation.compare import Comparison, p_text
from burnish.evaluation.compare import compare as compare_results
from burnish.evaluation.result import EvaluationResult
from burnish.evaluation.statistics import Estimate

ENV = "contact/touch"
NAME = "demo"
"""Name of both evaluations."""
STATE = "demo.json"
"""What is done, and with which options."""
REQUESTS = 20
"""Round trips of the client that are measured."""


@dataclass(frozen=True)
class Options:
    """Show the main job end to end: demonstrations, a pretrained policy, reinforcement learning, proof, deployment.

    A probe touches a point of a metal plate and holds a force there. Each stage prints the burnish command that it is,
    keeps what it made below --out, and is skipped when it is done; an interrupted demo goes on where it stopped.
    """

    out: Path = Path("runs/demo")
    """Folder of everything that is made."""
    fresh: bool = False
    """Begin anew: what is in the folder is removed."""
    demonstrations: int = 60
    """Episodes that the expert demonstrates."""
    pretrain_steps: int = 2500
    """Gradient steps of imitation."""
    iterations: int = 60
    """Rollouts and updates of reinforcement learning."""
    episodes: int = 100
    """Episodes of each evaluation."""
    num_envs: int = 0
    """Environments run at once while training; 0 for the recipe's own."""
    videos: int = 2
    """Successes and failures to film, of each kind; 0 for none."""
    seed: int = 0
    """Seed of training."""

    def __post_init__(self) -> None:
        """Refuse a demo of nothing."""
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, found {self.seed}.")
        for name in ("demonstrations", "pretrain_steps", "iterations", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, found {getattr(self, name)}.")


@dataclass(frozen=True)
class Stage:
    """One step of the job."""

    name: str
    why: str
    """What happens and what for, in plain words."""
    work: Callable[[], int]


def run(arguments: list[str]) -> int:
    """Run what is not done yet, then sum up and serve."""
    options = parse(Options, arguments, prog="burnish demo")
    require("lerobot", "lerobot", "the demo, which trains lerobot's ACT")
    begun = time.monotonic()
    seconds = _open(options)
    stages = _stages(options)
    for number, stage in enumerate(stages, 1):
        console.rule(f"[bold]{number}/{len(stages) + 1}  {stage.name}", align="left")
        if stage.name in seconds:
            say(f"Done before, in {seconds[stage.name]:.0f} s.\n")
            continue
        say(f"{stage.why}\n")
        stage_begun = time.monotonic()
        status = stage.work()
        if status:
            return status
        seconds[stage.name] = time.monotonic() - stage_begun
        _write_state(options, seconds)
        say("")
    console.rule(f"[bold]{len(stages) + 1}/{len(stages) + 1}  Deploy", align="left")
    say(
        "The checkpoint is served over openpi's websocket protocol on a free port of this machine; a client sends an\n"
        "observation and gets a chunk of actions. A robot does the same: burnish deploy "
        f"{options.out / 'better'} --protocol openpi\n"
    )
    serve_once(options.out / "better")
    say("")
    _sum_up(options, seconds, time.monotonic() - begun)
    return 0


def _stages(options: Options) -> list[Stage]:
    out = options.out
    recordings, base, better = out / "demonstrations", out / "base", out / "better"
    evaluation = ["--tasks", "shift", "--episodes", str(options.episodes), "--name", NAME]
    evaluation += ["--videos", str(options.videos)]
    return [
        Stage(
            "Record demonstrations",
            "A scripted expert, which knows exactly where the plate is, brings a probe to it and holds a force there.\n"
            "The episodes become a LeRobotDataset, the format that stock lerobot trains on.",
            lambda: _call(
                "record",
                [
                    *("--env", ENV, "--teacher", "contact", "--tasks", "nominal"),
                    *("--episodes", str(options.demonstrations), "--out", str(recordings)),
                ],
            ),
        ),
        Stage(
            "Pretrain",
            "An action-chunking transformer (lerobot's ACT, state only) learns to imitate the expert. It reads where\n"
            "the plate is believed to be and does not feel forces: it works as long as the estimate is right.",
            lambda: _train(
                "pretrain",
                base,
                [
                    *("--env", ENV, "--dataset", str(recordings / "dataset")),
                    *("--numbers.steps", str(options.pretrain_steps), "--numbers.seed", str(options.seed)),
                ],
            ),
        ),
        Stage(
            "Evaluate the pretrained policy",
            "In deployment the estimate is often wrong by millimetres: too high and the probe misses the surface, too\n"
            f"low and it presses too hard. {options.episodes} fixed episodes of that kind say how good the policy is.",
            lambda: _call("eval", [str(base), *evaluation]),
        ),
        Stage(
            "Post-train by reinforcement learning",
            "PAC-ACT: the policy gets the wrist force as a further input, ignored at first, and improves by its own\n"
            "experience: PPO over whole action chunks, held near what it was pretrained to do. The critic also sees\n"
            "where the plate really is, which only a simulator can tell; the policy never does.",
            lambda: _train(
                "pac_act",
                better,
                [
                    *("--env", ENV, "--checkpoint", str(base)),
                    *(("--num_envs", str(options.num_envs)) if options.num_envs else ()),
                    *("--numbers.iterations", str(options.iterations), "--numbers.seed", str(options.seed)),
                ],
            ),
        ),
        Stage(
            "Evaluate the post-trained policy",
            "The same episodes again, seed by seed: what differs is the policy.",
            lambda: _call("eval", [str(better), *evaluation]),
        ),
        Stage(
            "Compare",
            "Pair by pair, with intervals and tests. A force figure counts only beside coverage and success: a tool\n"
            "that does not touch presses nobody.",
            lambda: _call("compare", [str(base), str(better), "--name", NAME]),
        ),
    ]


def _call(command: str, arguments: list[str]) -> int:
    """Print a command and run it."""
    say(f"[dim]$ burnish {command} {' '.join(arguments)}[/]")
    commands = {"record": record.run, "train": train.run, "eval": evaluate.run, "compare": compare.run}
    return commands[command](arguments)


def _train(recipe: str, folder: Path, arguments: list[str]) -> int:
    """Run a recipe, or go on with a run that was interrupted."""
    if (folder / "config.json").is_file():
        return _call("train", [recipe, "--resume", str(folder)])
    return _call("train", [recipe, *arguments, "--out", str(folder)])


def _open(options: Options) -> dict[str, float]:
    """Return the seconds that each finished stage took.

    Raises:
        ConfigError: If the folder was made with other options.
    """
    file = options.out / STATE
    if options.fresh and file.is_file():
        shutil.rmtree(options.out)
    if not file.is_file():
        _write_state(options, {})
        return {}
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        seconds: dict[str, float] = {str(name): float(item) for name, item in state["seconds"].items()}
        stored = state["options"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is damaged: {error!r}. Begin anew: burnish demo --fresh") from error
    changed = [name for name, item in _plain(options).items() if stored.get(name) != item]
    if changed:
        raise ConfigError(
            f"{options.out} was made with another {', '.join(changed)}. Begin anew with --fresh, or use another --out."
        )
    return seconds


def _plain(options: Options) -> dict[str, object]:
    return {name: item for name, item in asdict(options).items() if name not in ("out", "fresh")}


def _write_state(options: Options, seconds: dict[str, float]) -> None:
    text = json.dumps({"options": _plain(options), "seconds": seconds}, indent=1)
    durable_text(options.out / STATE, text + "\n")


def serve_once(run_folder: Path) -> None:
    """Serve a checkpoint on a free loopback port, ask it as a client would, print the answer, and stop."""
    loaded = load_checkpoint(run_folder)
    spec = loaded.policy.spec
    env = loaded.env_config.build(1)
    try:
        observation = env.reset(record.recording_starts(env.spec, 1, ("nominal",), 0))
    finally:
        env.close()
    message = {key: observation[key][0] for key in spec.observation}
    with (
        running(Server(loaded.policy, identity_of(loaded), ServerConfig(port=0))) as server,
        Client(server.url) as client,
    ):
        say(f"Serving {client.metadata['policy']} ({client.metadata['env']}) at {server.url}")
        milliseconds = []
        for _ in range(REQUESTS):
            begun = time.perf_counter()
            answer = client.infer({**message, TASK_KEY: observation[TASK_KEY][0]})
            milliseconds.append(1e3 * (time.perf_counter() - begun))
    chunk = answer["actions"]
    names = spec.action.names or tuple(f"a{i}" for i in range(chunk.shape[1]))
    heads = [f"{name} \\[{unit}]" if unit else name for name, unit in zip(names, _units(spec.action), strict=True)]
    rows = [(k, *(f"{entry:+.4f}" for entry in action)) for k, action in enumerate(chunk)]
    table(
        f"The answer: {len(chunk)} actions, {loaded.replan_steps} to execute before asking again",
        ("step", *heads),
        rows,
    )
    p50, p99 = np.percentile(milliseconds, [50, 99])
    period = 1e3 * loaded.replan_steps * client.metadata["control_dt"]
    say(f"Round trip: median {p50:.1f} ms, p99 {p99:.1f} ms; the executed chunk lasts {period:.0f} ms. Server stopped.")


def _units(spec: ArraySpec) -> list[str]:
    units = spec.unit.split(",")
    return units if len(units) == spec.shape[0] else units[:1] * spec.shape[0]


def _sum_up(options: Options, seconds: dict[str, float], elapsed: float) -> None:
    console.rule("[bold]Summary", align="left")
    out = options.out
    found = [EvaluationResult.load(out / name / "evaluations" / NAME) for name in ("base", "better")]
    comparison = compare_results(*found)
    for line in verdict(comparison):
        say(line)
    table("", ("stage", "seconds"), [(name, f"{item:.0f}") for name, item in seconds.items()])
    films = sorted((out / "better" / "evaluations" / NAME / "videos").glob("*.mp4"))
    report = out / "better" / "evaluations" / NAME / "comparison.html"
    if not report.is_file():
        raise DatasetError(f"{report} is missing. Begin anew: burnish demo --fresh")
    say(f"\nReport: [bold]{report.resolve()}[/]" + (" (with videos)" if films else " (without videos)"))
    say(f"Checkpoint: {out / 'better'}; its policy folder is a stock lerobot folder.")
    say(f"This call took {elapsed / 60:.1f} minutes.")
    say(f"Next: train longer, burnish train pac_act --env {ENV} --checkpoint {out / 'base'} --numbers.iterations 150")


def verdict(comparison: Comparison) -> list[str]:
    """Return what a comparison says, in sentences."""
    success = comparison.metric("success")
    gain, low, high = (
        100 * item for item in (success.difference.value, success.difference.low, success.difference.high)
    )
    test = comparison.mcnemar
    lines = [
        f"Success before: {_percent(success.before)}; after post-training: {_percent(success.after)}.",
        f"That is {gain:+.0f} points (95 % interval {low:+.0f} to {high:+.0f}) on the same {comparison.pairs} pairs:",
        f"{test.gained} gained, {test.lost} lost, McNemar p {p_text(test.p_value)}.",
    ]
    coverage = [item.after.value for item in comparison.metrics if item.name == "coverage"]
    lines += [
        f"Contact readings above 60 N: {100 * item.before.value:.2f} % before, {100 * item.after.value:.2f} % after,\n"
        f"at coverage {coverage[0]:.2f} ({item.verdict})."
        for item in comparison.metrics
        if item.name == "share_above_60N" and coverage
    ]
    return lines


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} % [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"
