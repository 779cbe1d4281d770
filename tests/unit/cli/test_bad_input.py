"""What a person gets for a mistake: status 2, and a sentence that says what was wrong and what to do."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

RUN = "<run>"
"""Stands for the folder of a small run."""

TYPED_WRONG: list[tuple[list[str], list[str]]] = [
    (["trainn"], ["no command 'trainn'", "Did you mean 'train'?"]),
    (["train", "ppoo"], ["no recipe 'ppoo'", "Did you mean 'ppo'?", "pac_act"]),
    (["train", "ppo", "--env", "point_mas"], ["no env 'point_mas'", "Did you mean 'point_mass'?"]),
    (["train", "ppo", "--policy", "mpl"], ["no policy 'mpl'", "Available: act, mlp"]),
    (["train", "ppo", "--env", "point_mass", "--env=point_mass"], ["--env was given twice", "Give it once"]),
    (["train", "ppo", "--env"], ["--env needs a value"]),
    (["train", "ppo", "--env", "json.decoder"], ["Cannot use module 'json.decoder' as env", "Config"]),
    (["train", "ppo", "--env", "no_such.module"], ["Cannot use module 'no_such.module'", "Available:"]),
    (["train", "ppo", "--policy.hiddn", "3"], ["--policy.hiddn", "--policy.hidden"]),
    (["train", "ppo", "--env.goal_radius", "wide"], ["wide", "--env.goal-radius"]),
    (["train", "ppo", "--teacher", "contact"], ["--teacher"]),
    (["list", "envs"], ["envs", "env"]),
    (["doctor", "--rendring"], ["--rendring", "--rendering"]),
    (["check", "polic", "mlp"], ["no checks for 'polic'", "Did you mean 'policy'?"]),
    (["check", "policy", "mlpp"], ["no policy 'mlpp'", "Did you mean 'mlp'?"]),
    (["check", "env"], ["Say what to check", "teacher"]),
    (["check", "env", "point_mass", "--env", "point_mass"], ["checked by itself", "take out --env"]),
    (["deploy", RUN, "--protocol", "opnpi"], ["no protocol 'opnpi'", "Did you mean 'openpi'?"]),
]

NUMBERS_WRONG: list[tuple[list[str], list[str]]] = [
    (["train", "ppo", "--numbers.iterations", "-1"], ["iterations must be at least 1, found -1"]),
    (["train", "ppo", "--numbers.iterations", "many"], ["many", "--numbers.iterations"]),
    (["train", "ppo", "--num_envs", "0"], ["num_envs (0) must be at least 1"]),
    (["train", "ppo", "--workers", "-1"], ["workers (-1)"]),
    (["train", "ppo", "--workers", "9", "--num_envs", "2"], ["num_envs (2)", "at least workers (9)"]),
    (["train", "ppo", "--policy.chunk_steps", "0"], ["chunk_steps (0)", "at least 1"]),
    (["train", "ppo", "--policy.min_std", "2.0"], ["0 < min_std <= init_std", "2.0"]),
    (["train", "ppo", "--env.goal_radius", "-0.1"], ["goal_radius must be positive, found -0.1"]),
    (["train", "ppo", "--env.dynamics", "magic"], ["magic", "velocity", "force"]),
    (["eval", RUN, "--episodes", "0"], ["episodes must be at least 1, found 0"]),
    (["eval", RUN, "--videos", "-1"], ["videos must be at least 0, found -1"]),
    (["eval", RUN, "--replan_steps", "99"], ["replan_steps is 99", "chunks of 8 actions"]),
    (["eval", RUN, "--seed", "2000000"], ["seeds within [0, 1048576)", "seed=2000000"]),
    (["deploy", RUN, "--env", "point_mass", "--runtime.chunking.replan_steps", "99"], ["replan_steps (99)", "8 steps"]),
    (["deploy", RUN, "--protocol", "openpi", "--port", "70000"], ["port in [0, 65535]", "70000"]),
    (["deploy", "check", "ws://127.0.0.1:9", "--requests", "0"], ["requests must be at least 1, found 0"]),
    (["demo", "--iterations", "0"], ["iterations must be at least 1, found 0"]),
    (["demo", "--seed", "-1"], ["seed must not be negative, found -1"]),
]

NAMES_NOTHING: list[tuple[list[str], list[str]]] = [
    (["train", "ppo", "--checkpoint", "nowhere"], ["nowhere is neither a checkpoint", "does not exist"]),
    (["train", "ppo", "--resume", "nowhere"], ["nowhere holds no config.json"]),
    (["train", "--resume", "nowhere"], ["nowhere holds no config.json"]),
    (["train", "pretrain"], ["Name the demonstrations: --dataset DIR"]),
    (["train", "pretrain", "--dataset", "nowhere"], ["nowhere"]),
    (["eval"], ["Name what to evaluate", "found neither"]),
    (["eval", "nowhere"], ["nowhere is neither a checkpoint"]),
    (["eval", RUN, "--teacher", "contact", "--env", "contact/contour"], ["found both"]),
    (["eval", "--teacher", "contact"], ["Say where the expert 'contact' acts", "--env ID"]),
    (["eval", RUN, "--split", "rain"], ["no split 'rain'", "train"]),
    (["eval", RUN, "--tasks", "rihgt"], ["no task 'rihgt'", "Did you mean 'right'?"]),
    (["eval", RUN, "--split", "train", "--tasks", "right"], ["not both"]),
    (["compare", RUN], ["Name two evaluations"]),
    (["compare", RUN, RUN], ["no evaluation 'default'", "It has none", "burnish eval"]),
    (["export"], ["Name the checkpoint"]),
    (["export", "nowhere"], ["nowhere is neither a checkpoint"]),
    (["deploy", "check"], ["Name the server"]),
    (["deploy", "check", "ws://127.0.0.1:9"], ["Cannot connect to ws://127.0.0.1:9"]),
    (["deploy", "check", "http:/nonsense"], ["Cannot connect to http:/nonsense"]),
    (["deploy", RUN, "--replay", "nowhere"], ["'nowhere' holds no run"]),
    (["record", "--env", "point_mass"], ["Say which teacher to use", "contact"]),
    (["record", "--teacher", "contact"], ["Say which env to use", "point_mass"]),
    (["record", "--checkpoint", RUN, "--format", "log", "--tasks", "rihgt"], ["no task 'rihgt'"]),
]

DOES_NOT_FIT: list[tuple[list[str], list[str]]] = [
    (["train", "ppo", "--policy.state_keys", "privileged.goal"], ["privileged.goal", "teachers and critics only"]),
    (["train", "ppo", "--policy.state_keys", "observation.stat"], ["Did you mean 'observation.state'?"]),
    (["train", "ppo", "--policy", "act"], ["point_mass", "use the policy 'mlp'"]),
    (["train", "pac_act", "--checkpoint", RUN], ["policy of kind 'mlp', not 'act'", "--policy mlp"]),
    (["train", "ppo", "--checkpoint", RUN, "--policy.hidden", "9"], ["do not fit this policy"]),
    (["train", "ppo", "--sampler.tasks", "upp"], ["no task 'upp'", "Did you mean 'up'?"]),
    (["eval", RUN, "--env", "contact/contour"], ["another meaning"]),
    (["eval", "--teacher", "contact", "--env", "point_mass"], ["no scripted expert for 'point_mass'"]),
    (["record", "--checkpoint", RUN], ["one observation for every action", "--format log"]),
    (["deploy", RUN, "--env", "point_mass", "--protocol", "openpi"], ["Choose one of"]),
    (["deploy", RUN, "--protocol", "openpi", "--host", "0.0.0.0"], ["Refusing to listen on '0.0.0.0'", "key"]),
    (["deploy", RUN, "--protocol", "openpi", "--certificate", "x.pem"], ["both certificate and private_key"]),
    (["deploy", RUN, "--replay", "x", "--fast"], ["Unrecognized options", "--fast"]),
    (["train", "ppo", "--resume", RUN, "--num_envs", "3"], ["keeps its configuration", "take out --num_envs 3"]),
    (["train", "pac_act", "--resume", RUN], ["a run of recipe 'ppo', not 'pac_act'"]),
    (["train", "--resume", RUN, "--out", "elsewhere"], ["stays in its folder", "take out --out"]),
    (["train", "ppo", "--out", RUN], ["already holds a run", "--resume"]),
]


def _name(case: object) -> str | None:
    return " ".join(map(str, case)) if isinstance(case, list) else None


@pytest.mark.parametrize(
    ("arguments", "fragments"), [*TYPED_WRONG, *NUMBERS_WRONG, *NAMES_NOTHING, *DOES_NOT_FIT], ids=_name
)
def test_mistake_gets_a_sentence(
    arguments: list[str], fragments: list[str], run_folder: Path, command: Command, tmp_path: Path
) -> None:
    status, printed = command(*(str(run_folder) if item == RUN else item for item in arguments))
    assert status == 2
    assert "Traceback" not in printed
    for fragment in fragments:
        assert fragment in printed
    assert not list(tmp_path.rglob("config.json")), "a run that never began must not keep its name"
