"""``burnish eval``: fixed episodes, intervals, videos and a report for a checkpoint or an expert."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import registry
from burnish.cli.building import TeacherActor, build_env, component_of, env_spec_of, load_checkpoint
from burnish.cli.console import console, plain, progress, say
from burnish.cli.options import Component, choose_components, parse, wants_help, with_components
from burnish.core.contracts import VecEnv
from burnish.core.errors import ConfigError
from burnish.core.step import evaluation_starts
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.report import Films, write_report
from burnish.evaluation.result import FILE_NAME, EvaluationResult
from burnish.evaluation.videos import Video, record_videos
from burnish.rl.checkpoint import read_description, resolve


@dataclass(frozen=True)
class Options:
    """Evaluate a checkpoint or an expert.

    burnish eval CHECKPOINT [--env ID] [options], or burnish eval --teacher ID --env ID [options]: an expert may see
    privileged entries, so it shows what is possible.

    The environment is the one of the checkpoint, unless another is named. Episodes are fixed by their seeds, so two
    evaluations with the same options run the same episodes and can be compared pair by pair.
    """

    env: Component = None
    """The environment."""
    teacher: Component = None
    """The expert."""
    split: str = ""
    """Split of the environment; all tasks when empty."""
    tasks: tuple[str, ...] = ()
    """Task names, instead of a split."""
    episodes: int = 100
    """How many episodes."""
    seed: int = 0
    """First episode seed."""
    num_envs: int = 16
    """Environments run at once; it does not change what is measured."""
    workers: int = 0
    """Worker processes; 0 runs in this process."""
    replan_steps: int = 0
    """Actions executed of each chunk; 0 for the checkpoint's own, or an expert's whole chunk."""
    sampled: bool = False
    """Sample actions instead of taking the most likely chunk."""
    videos: int = 2
    """Successes and failures to film, of each kind at most this many."""
    out: str = ""
    """Folder of the result; evaluations/<name> below the checkpoint (or runs/teacher-<id>) when empty."""
    name: str = "default"
    """Name of the result's folder when ``out`` is empty."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.split and self.tasks:
            raise ConfigError(f"Name a split ('{self.split}') or tasks {list(self.tasks)}, not both.")
        for name, least in (("episodes", 1), ("seed", 0), ("num_envs", 1), ("replan_steps", 0), ("videos", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, found {getattr(self, name)}.")


@dataclass(frozen=True)
class Subject:
    """What is evaluated."""

    policy: Any
    """Acts: a policy, or an expert in its place."""
    replan_steps: int
    """Actions executed of each chunk."""
    description: Mapping[str, Any]
    """JSON values that name it in the result."""
    folder: Path
    """Folder that results go below."""
    runs: tuple[Path, ...] = ()
    """Run folders whose learning curves are shown."""


def run(arguments: list[str]) -> int:
    """Evaluate."""
    path = Path(arguments[0]) if arguments and not arguments[0].startswith("-") else None
    rest = arguments if path is None else arguments[1:]
    if wants_help(rest) and path is None and not any(item.startswith(("--env", "--teacher")) for item in rest):
        parse(Options, ["--help"], prog="burnish eval CHECKPOINT")
    chosen, rest = choose_components(rest, {"env": None, "teacher": None})
    if (path is None) == ("teacher" not in chosen):
        raise ConfigError(
            "Name what to evaluate: burnish eval CHECKPOINT [options], or burnish eval --teacher ID --env ID [options]"
            f"; found {'both' if path else 'neither'}. See burnish eval --help."
        )
    if "env" not in chosen:
        if path is None:
            raise ConfigError(f"Say where the expert '{_teacher_name(chosen)}' acts: --env ID. See burnish list env.")
        directory = resolve(path)
        chosen["env"] = component_of(directory, read_description(directory), "env")
    options = parse(with_components(Options, chosen), rest, prog=f"burnish eval {path or '--teacher ID'}")
    subject = checkpoint_subject(path, options.env) if path is not None else teacher_subject(options)
    folder = Path(options.out) if options.out else subject.folder / "evaluations" / options.name
    evaluate_subject(subject, options, folder)
    return 0


def checkpoint_subject(path: Path, env_config: Any) -> Subject:
    """Read a run or checkpoint folder."""
    loaded = load_checkpoint(path, env_config)
    run_folder = loaded.directory.parent.parent
    return Subject(
        policy=loaded.policy,
        replan_steps=loaded.replan_steps,
        description={
            "id": loaded.policy.spec.id,
            "checkpoint": str(loaded.directory),
            "recipe": loaded.description.get("recipe", ""),
            "iteration": loaded.description.get("iteration", 0),
        },
        folder=path,
        runs=(run_folder,) if (run_folder / "metrics.jsonl").is_file() else (),
    )


def teacher_subject(options: Options) -> Subject:
    """Build the expert for the environment."""
    spec, name = env_spec_of(options.env), registry.name_of("teacher", options.teacher)
    steps = int(getattr(options.teacher, "chunk_steps", 1))
    return Subject(
        policy=TeacherActor(options.teacher.build(spec), name, spec, steps),
        replan_steps=steps,
        description={"id": f"teacher {name}", "config": registry.to_json("teacher", options.teacher)},
        folder=Path("runs") / f"teacher-{name.replace('/', '-')}",
    )


def evaluate_subject(subject: Subject, options: Options, folder: Path) -> EvaluationResult:
    """Run the episodes, write ``evaluation.json``, videos and ``report.html`` into a folder, and print the table.

    Args:
        subject: What is evaluated.
        options: What to run.
        folder: Where results go; an older result there is replaced.
    """
    num_envs = min(options.num_envs, options.episodes)
    env = build_env(options.env, num_envs, min(options.workers, num_envs))
    try:
        starts = evaluation_starts(
            env.spec, options.episodes, split=options.split, tasks=options.tasks, seed=options.seed
        )
        with progress() as bar:
            task = bar.add_task("evaluating", total=len(starts), note="")
            result = evaluate(
                subject.policy,
                env,
                starts,
                replan_steps=options.replan_steps or subject.replan_steps,
                deterministic=not options.sampled,
                seed=options.seed,
                env_config=registry.to_json("env", options.env),
                description=subject.description,
                progress=lambda done, total, good: bar.update(task, completed=done, note=f"success {good}/{done}"),
            )
        result.save(folder)
        console.print(result.table())
        for alarm in result.alarms:
            say(f"[yellow]look at this:[/] {plain(alarm)}")
        films = Films(after=film(subject.policy, env, result, folder / "videos", options.videos))
    finally:
        env.close()
    report = write_report(folder / "report.html", [result], runs=subject.runs, films=films)
    say(f"\nResult: {folder / FILE_NAME}\nReport: {report}")
    return result


def film(policy: Any, env: VecEnv, result: EvaluationResult, folder: Path, count: int) -> list[Video]:
    """Film the first successes and failures; says so, and goes on, where the environment cannot be drawn here."""
    if count < 1:
        return []
    try:
        with console.status("filming"):
            return record_videos(policy, env, result, folder, successes=count, failures=count)
    except Exception as error:  # drivers raise anything, and a finished evaluation must not be lost over a film
        say(f"[yellow]no videos:[/] {type(error).__name__}: {plain(error)} See: burnish doctor")
        return []


def _teacher_name(chosen: Mapping[str, Any]) -> str:
    return registry.name_of("teacher", chosen["teacher"])
