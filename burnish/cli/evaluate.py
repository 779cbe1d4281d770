"""``burnish eval``: fixed episodes, intervals, videos and a report for a checkpoint or an expert."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import registry
from burnish.cli.building import Loaded, build_env, load_checkpoint
from burnish.cli.console import console, progress, say
from burnish.cli.options import Component, choose_components, parse, wants_help, with_components
from burnish.core.contracts import Policy, VecEnv
from burnish.core.errors import ConfigError, EnvError
from burnish.core.step import evaluation_starts
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.report import Films, write_report
from burnish.evaluation.result import FILE_NAME, EvaluationResult
from burnish.evaluation.videos import Video, record_videos
from burnish.rl.checkpoint import read_description, resolve


@dataclass(frozen=True)
class Options:
    """Evaluate a checkpoint: burnish eval CHECKPOINT [--env ID] [options].

    The environment is the one of the checkpoint, unless another is named. Episodes are fixed by their seeds, so two
    evaluations with the same options run the same episodes and can be compared pair by pair.
    """

    env: Component = None
    """The environment."""
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
    """Actions executed of each chunk; 0 for the checkpoint's own."""
    sampled: bool = False
    """Sample actions instead of taking the most likely chunk."""
    videos: int = 2
    """Successes and failures to film, of each kind at most this many."""
    out: str = ""
    """Folder of the result; evaluations/<name> beside the checkpoint when empty."""
    name: str = "default"
    """Name of the result's folder when ``out`` is empty."""


def run(arguments: list[str]) -> int:
    """Evaluate."""
    if not arguments or arguments[0].startswith("-"):
        if wants_help(arguments):
            parse(Options, ["--help"], prog="burnish eval CHECKPOINT")
        raise ConfigError("Name the checkpoint: burnish eval CHECKPOINT [options]; see burnish eval --help.")
    path, rest = Path(arguments[0]), arguments[1:]
    chosen, rest = choose_components(rest, {"env": None})
    if "env" not in chosen:
        chosen["env"] = _env_of(path)
    options = parse(with_components(Options, chosen), rest, prog="burnish eval CHECKPOINT")
    evaluate_checkpoint(load_checkpoint(path, options.env), options, output_folder(path, options))
    return 0


def output_folder(path: Path, options: Options) -> Path:
    """Return where the result goes."""
    return Path(options.out) if options.out else path / "evaluations" / options.name


def _env_of(path: Path) -> Any:
    return registry.from_json("env", read_description(resolve(path))["env"])


def evaluate_checkpoint(loaded: Loaded, options: Options, folder: Path) -> EvaluationResult:
    """Run the episodes, write ``evaluation.json``, videos and ``report.html`` into a folder, and print the table.

    Args:
        loaded: Checkpoint.
        options: What to run.
        folder: Where results go; an older result there is replaced.

    Returns:
        The :class:`burnish.evaluation.result.EvaluationResult`.
    """
    env = build_env(options.env, options.num_envs, options.workers)
    try:
        starts = evaluation_starts(
            env.spec, options.episodes, split=options.split, tasks=options.tasks, seed=options.seed
        )
        with progress() as bar:
            task = bar.add_task("evaluating", total=len(starts), note="")
            result = evaluate(
                loaded.policy,
                env,
                starts,
                replan_steps=options.replan_steps or loaded.replan_steps,
                deterministic=not options.sampled,
                seed=options.seed,
                env_config=registry.to_json("env", options.env),
                description={
                    "id": loaded.policy.spec.id,
                    "checkpoint": str(loaded.directory),
                    "recipe": loaded.description.get("recipe", ""),
                    "iteration": loaded.description.get("iteration", 0),
                },
                progress=lambda done, total, good: bar.update(task, completed=done, note=f"success {good}/{done}"),
            )
        result.save(folder)
        console.print(result.table())
        for alarm in result.alarms:
            say(f"[yellow]look at this:[/] {alarm}")
        films = Films(after=film(loaded.policy, env, result, folder / "videos", options.videos))
    finally:
        env.close()
    run_folder = loaded.directory.parent.parent
    runs = [run_folder] if (run_folder / "metrics.jsonl").is_file() else []
    report = write_report(folder / "report.html", [result], runs=runs, films=films)
    say(f"\nResult: {folder / FILE_NAME}\nReport: {report}")
    return result


def film(policy: Policy, env: VecEnv, result: EvaluationResult, folder: Path, count: int) -> list[Video]:
    """Film the first successes and failures; says so, and goes on, where the environment cannot be drawn here."""
    if count < 1:
        return []
    try:
        with console.status("filming"):
            return record_videos(policy, env, result, folder, successes=count, failures=count)
    except EnvError as error:
        say(f"[yellow]no videos:[/] {error}")
        return []
