"""``burnish deploy CHECKPOINT --env ID``: drive a simulated robot at its rate, with scheduler and safety chain."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from burnish.cli.building import load_checkpoint
from burnish.cli.console import plain, say
from burnish.cli.folders import next_folder
from burnish.cli.options import Component, choose_components, parse, with_components
from burnish.core.step import evaluation_starts
from burnish.deploy.runtime import Config as RuntimeConfig
from burnish.deploy.runtime import run_env


@dataclass(frozen=True)
class Options:
    """Run episodes under the runtime that would run beside the robot; the log of every tick is kept."""

    env: Component = None
    """The environment."""
    task: str = ""
    """Task name; the environment's first when empty."""
    episodes: int = 1
    """How many episodes."""
    seed: int = 0
    """First episode seed, as for burnish eval."""
    out: str = ""
    """Folder of the tick logs; deployments/<n> beside the checkpoint when empty."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """The loop, its chunk scheduler and its safety chain; ``chunking.replan_steps`` 0 is the checkpoint's own."""


def run_against(path: Path, arguments: list[str]) -> int:
    """Run the episodes; status 1 when the runtime had to stop one."""
    chosen, rest = choose_components(arguments, {"env": None}, required=("env",))
    options = parse(with_components(Options, chosen), rest, prog="burnish deploy CHECKPOINT --env ID")
    loaded = load_checkpoint(path, options.env)
    folder = Path(options.out) if options.out else next_folder(path / "deployments")
    runtime = with_replan(options.runtime, loaded.replan_steps)
    env = options.env.build(1)
    stopped = 0
    try:
        tasks = (options.task or env.spec.tasks[0],)
        for number, start in enumerate(evaluation_starts(env.spec, options.episodes, tasks=tasks, seed=options.seed)):
            report = run_env(loaded.policy, env, start, runtime, log=folder / f"{number:03d}")
            say(f"[bold]episode {number}[/] {start}\n{plain(report.text())}")
            stopped += bool(report.stop)
    finally:
        env.close()
    say(f"\nTick logs: {folder}")
    return 1 if stopped else 0


def with_replan(runtime: RuntimeConfig, replan_steps: int) -> RuntimeConfig:
    """Return the configuration with the checkpoint's replan horizon, where none is named."""
    chunking = runtime.chunking
    return runtime if chunking.replan_steps else replace(runtime, chunking=replace(chunking, replan_steps=replan_steps))
