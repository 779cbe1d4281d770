"""``burnish record``: run an expert, or a policy, and keep every finished episode; export a LeRobotDataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from burnish import registry
from burnish.cli.building import actor_of, build_env, env_spec_of, load_checkpoint, teacher_act
from burnish.cli.console import progress, say
from burnish.cli.options import Component, command, take
from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import EnvSpec
from burnish.core.step import TRAINING_SEED_START, Start


@dataclass(frozen=True)
class Options:
    """Record episodes of an expert (--env ID --teacher ID) or of a policy (--checkpoint DIR).

    Every finished episode is on disk at once; the same command goes on with an interrupted recording.
    """

    env: Component = None
    """The environment."""
    teacher: Component = None
    """The expert."""
    out: Path = Path("recordings/demonstrations")
    """Folder: ``episodes/`` is the durable log, ``dataset/`` the LeRobotDataset."""
    episodes: int = 50
    """How many Starts are run."""
    tasks: tuple[str, ...] = ()
    """Task names, in turn; all tasks of the environment when empty."""
    seed: int = 0
    """Picks other episodes; they are in the range of training, so no evaluation sees them."""
    num_envs: int = 8
    """Environments run at once."""
    workers: int = 0
    """Worker processes; 0 runs in this process."""
    format: Literal["lerobot", "log"] = "lerobot"
    """"lerobot" exports a LeRobotDataset v3 at the end; "log" keeps the durable log only."""
    keep_failures: bool = False
    """Export episodes that did not succeed, too; the log keeps all in any case."""


def recording_starts(spec: EnvSpec, episodes: int, tasks: tuple[str, ...], seed: int) -> list[Start]:
    """Return Starts for recording: tasks in turn, seeds in the range of training."""
    names = tasks or spec.tasks
    for name in names:
        if name not in spec.tasks:
            raise ConfigError(f"Environment '{spec.id}' has no task '{name}'.{suggest(name, spec.tasks)}")
    if episodes < 1 or seed < 0:
        raise ConfigError(f"Recording needs episodes >= 1 and seed >= 0, found {episodes} and {seed}.")
    first = TRAINING_SEED_START + seed * (1 << 12)
    return [
        Start(task=names[i % len(names)], init=(seed * episodes + i) % spec.num_inits, seed=first + i)
        for i in range(episodes)
    ]


def run(arguments: list[str]) -> int:
    """Record."""
    from burnish.data.record import record

    checkpoint, arguments = take(arguments, "checkpoint")
    if checkpoint is not None:
        loaded = load_checkpoint(Path(checkpoint))
        options = command(Options, arguments, prog="burnish record", defaults={"env": loaded.env_config})
        act = actor_of(loaded.policy, options.seed, deterministic=False)
        replan_steps = loaded.replan_steps
        info: dict[str, Any] = {"policy": loaded.policy.spec.id, "checkpoint": str(loaded.directory)}
    else:
        kinds = {"env": None, "teacher": None}
        options = command(Options, arguments, prog="burnish record", defaults=kinds, required=("env", "teacher"))
        act = teacher_act(options.teacher.build(env_spec_of(options.env)), options.seed)
        replan_steps = 1
        info = {"teacher": registry.to_json("teacher", options.teacher)}
    if options.format == "lerobot" and replan_steps != 1:
        raise ConfigError(
            "A LeRobotDataset needs one observation for every action, but this policy acts in chunks of "
            f"{replan_steps}. Record its durable log with --format log."
        )
    info["env"] = registry.to_json("env", options.env)
    env = build_env(options.env, options.num_envs, options.workers)
    starts = recording_starts(env.spec, options.episodes, options.tasks, options.seed)
    try:
        with progress() as bar:
            task = bar.add_task("recording", total=len(starts), note="")
            result = record(
                act,
                env,
                starts,
                options.out,
                format=options.format,
                keep_only_success=not options.keep_failures,
                replan_steps=replan_steps,
                info=info,
                progress=lambda done, note: bar.update(task, completed=done, note=note),
            )
    finally:
        env.close()
    say(
        f"Recorded {result.episodes} episodes of {registry.name_of('env', options.env)} in {options.out}: {result.text}"
    )
    return 0
