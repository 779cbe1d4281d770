"""``burnish deploy ... --env ID`` and ``--robot NAME``: drive at the control rate, with scheduler and safety chain."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burnish.cli.acting import Acting, load_acting, remote_acting
from burnish.cli.console import plain, say
from burnish.cli.options import Component, choose_components, parse, take, with_components
from burnish.cli.robots import adapter_of, make_robot, take_robot_options
from burnish.core.config import to_plain
from burnish.core.errors import ConfigError
from burnish.core.spec import EnvSpec, check_fit
from burnish.core.step import Start, evaluation_starts
from burnish.deploy.formats import WRITERS, check_formats
from burnish.deploy.frames import RecordingRobot
from burnish.deploy.observations import Handshake, handshake
from burnish.deploy.remote import Config as RemoteConfig
from burnish.deploy.robot import Clock, EnvRobot, RealClock, Robot, SimulatedClock
from burnish.deploy.runtime import Config as RuntimeConfig
from burnish.deploy.runtime import RuntimeReport, run
from burnish.deploy.shadow import ShadowPolicy

OPERATOR = "operator"
"""Who drives in ``--shadow operator``: somebody else; nothing is sent."""


@dataclass(frozen=True)
class Common:
    """What simulated and real robots have in common."""

    seed: int = 0
    """First episode seed, as for burnish eval."""
    out: str = ""
    """Folder of the tick logs; deployments/<n> beside the checkpoint, or here for a server, when empty."""
    record: bool = False
    """Keep what was observed and sent at every tick, for burnish deploy export-log."""
    log_formats: tuple[str, ...] = ()
    """``rrd`` (rerun) and ``mcap``: written from the tick log after each run."""
    dry_run: bool = False
    """Compute, check and log everything, and send nothing."""
    shadow: str = ""
    """Only ask the policy, and compare it with who drives: another checkpoint or exported folder, or "operator" for a
    person or another controller at a robot (nothing is sent then)."""
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    """With --remote URL: how the server is reached."""


@dataclass(frozen=True)
class EnvOptions(Common):
    """Run episodes under the runtime that would run beside the robot; the log of every tick is kept."""

    env: Component = None
    """The environment."""
    task: str = ""
    """Task name; the environment's first when empty."""
    episodes: int = 1
    """How many episodes."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """The loop, its chunk scheduler and its safety chain; ``chunking.replan_steps`` 0 is the checkpoint's own."""


@dataclass(frozen=True)
class RobotOptions(Common):
    """Drive a robot until Ctrl-C, a limit, or something wrong; begin with ``--dry-run``, which sends nothing."""

    adapter: Component = None
    """How the robot is wired to the policy."""
    runtime: RuntimeConfig = field(default_factory=lambda: RuntimeConfig(clock="real"))
    """The loop, its chunk scheduler and its safety chain; ``chunking.replan_steps`` 0 is the checkpoint's own."""


def run_local(path: Path | None, url: str | None, arguments: list[str]) -> int:
    """Run a checkpoint or exported folder (``path``) or a server (``url``); status 1 when a run had to be stopped."""
    arguments = ["--remote.keys" if item == "--remote-keys" else item for item in arguments]
    robot, rest = take(arguments, "robot")
    if robot is not None:
        return _drive(path, url, robot, rest)
    return _simulate(path, url, rest)


def run_against(path: Path, arguments: list[str]) -> int:
    """Run a checkpoint against an environment."""
    return run_local(path, None, arguments)


def with_replan(runtime: RuntimeConfig, replan_steps: int) -> RuntimeConfig:
    """Return the configuration with the checkpoint's replan horizon, where none is named."""
    chunking = runtime.chunking
    return runtime if chunking.replan_steps else replace(runtime, chunking=replace(chunking, replan_steps=replan_steps))


def _simulate(path: Path | None, url: str | None, arguments: list[str]) -> int:
    chosen, rest = choose_components(arguments, {"env": None}, required=("env",))
    options = parse(with_components(EnvOptions, chosen), rest, prog="burnish deploy CHECKPOINT --env ID")
    check_formats(options.log_formats)
    if options.shadow == OPERATOR:
        raise ConfigError("An environment has no operator; name a checkpoint that drives: --shadow CHECKPOINT.")
    env = options.env.build(1)
    with ExitStack() as stack:
        stack.callback(env.close)
        acting = stack.enter_context(_acting(path, url, options, env.spec, options.env))
        tasks = (options.task or env.spec.tasks[0],)
        session = _Session(acting, options, env.spec)
        for number, start in enumerate(evaluation_starts(env.spec, options.episodes, tasks=tasks, seed=options.seed)):
            clock: Clock = RealClock() if options.runtime.clock == "real" else SimulatedClock()
            robot = EnvRobot(env, start, clock)
            say(f"[bold]episode {number}[/] {start}")
            session.run(robot, start, clock, f"{number:03d}")
    return session.end()


def _drive(path: Path | None, url: str | None, name: str, arguments: list[str]) -> int:
    device_options, rest = take_robot_options(arguments)
    adapter = adapter_of(name)
    made = with_components(RobotOptions, {"adapter": adapter()})
    options = parse(made, rest, prog=f"burnish deploy CHECKPOINT --robot {name}")
    check_formats(options.log_formats)
    if options.runtime.clock != "real":
        raise ConfigError("A robot moves in real time; leave --runtime.clock at real.")
    clock = RealClock()
    with ExitStack() as stack:
        robot, connect = stack.enter_context(make_robot(name, device_options, options.adapter, clock))
        acting = stack.enter_context(_acting(path, url, options, robot.offer() if url else None, None))
        robot.wire(acting.policy.spec, acting.control_dt)
        connect()
        session = _Session(acting, options, robot.spec)
        start = Start(robot.spec.tasks[0], 0, options.seed)
        session.run(robot, start, clock, "000")
    return session.end()


@contextmanager
def _acting(
    path: Path | None, url: str | None, options: Any, spec: EnvSpec | None, env_config: Any
) -> Iterator[Acting]:
    if url is not None:
        with remote_acting(url, options.remote, spec) as acting:
            yield acting
    else:
        assert path is not None
        yield load_acting(path, env_config)


class _Session:
    """The runs of one call."""

    def __init__(self, acting: Acting, options: Any, spec: EnvSpec) -> None:
        self._acting = acting
        self._options = options
        self._folder = Path(options.out) if options.out else _fresh((acting.folder or Path()) / "deployments")
        self._stopped = 0
        self._driver = acting
        if options.shadow and options.shadow != OPERATOR:
            self._driver = load_acting(Path(options.shadow), acting.env_config)
        runtime = with_replan(options.runtime, self._driver.replan_steps)
        if options.dry_run:
            runtime = replace(runtime, dry_run=True)
        if options.shadow == OPERATOR:
            runtime = replace(runtime, shadow=True)
        self._runtime = runtime
        check_fit(replace(acting.policy.spec, critic_observation={}), spec)

    def run(self, robot: Robot, start: Start, clock: Clock, name: str) -> None:
        """Run once, keep the logs and say how it went."""
        folder = self._folder / name
        self._shake(robot)
        for each in (self._acting, self._driver):
            reset = getattr(each.policy, "reset", None)  # a server is reset by a new connection
            if callable(reset):
                reset()
        policy: Any = self._acting.policy
        shadow = None
        if self._driver is not self._acting:
            folder.mkdir(parents=True, exist_ok=True)
            policy = shadow = ShadowPolicy(self._driver.policy, policy, path=folder / "shadow.jsonl")
        recorder = RecordingRobot(robot, folder, start) if self._options.record else None
        try:
            report = run(
                policy, recorder or robot, self._runtime, clock=clock, log=folder, header={"start": to_plain(start)}
            )
        finally:
            if recorder is not None:
                recorder.close()
        self._say(report, shadow, recorder)
        for kind in self._options.log_formats:
            WRITERS[kind](folder, folder / f"run.{kind}")

    def end(self) -> int:
        """Say where the logs are; return the status of the command."""
        say(f"\nTick logs: {self._folder}")
        return 1 if self._stopped else 0

    def _shake(self, robot: Robot) -> None:
        """Compare what the robot gives with what the policy reads, and print it before anything moves."""
        seen = robot.observe().observation
        found: Handshake = handshake(self._acting.policy.spec, seen, self._acting.statistics)
        say(plain(found.text()))
        found.check()

    def _say(self, report: RuntimeReport, shadow: ShadowPolicy | None, recorder: RecordingRobot | None) -> None:
        say(plain(report.text()))
        if shadow is not None:
            say(plain(shadow.report().text()))
        if recorder is not None and recorder.dropped:
            say(f"recording   {recorder.dropped} frames were left out: the disk is too slow")
        self._stopped += bool(report.stop)


def _fresh(root: Path) -> Path:
    number = 1
    while (root / f"{number:03d}").exists():
        number += 1
    return root / f"{number:03d}"
