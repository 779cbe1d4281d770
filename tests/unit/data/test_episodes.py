from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, EnvError
from burnish.core.step import ActionSample, Start
from burnish.data.episodes import Episode, run_episodes
from tests.unit.data.line_env import chunk_expert, expert, line_env, starts


def assert_same(one: Episode, two: Episode) -> None:
    assert (one.start, one.task, one.terminated, one.truncated) == (two.start, two.task, two.terminated, two.truncated)
    assert one.metrics == two.metrics
    for name in ("action", "reward", "decision"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.observation.keys() == two.observation.keys()
    for key in one.observation:
        np.testing.assert_array_equal(one.observation[key], two.observation[key])
        np.testing.assert_array_equal(one.last_observation[key], two.last_observation[key])


def collect(num_envs: int, count: int = 7, **options: Any) -> dict[Start, Episode]:
    episodes = run_episodes(
        chunk_expert, line_env(num_envs), starts(count), replan_steps=3, keep_observation=True, **options
    )
    return {episode.start: episode for episode in episodes}


@pytest.mark.parametrize("num_envs", [2, 3, 7, 9])
def test_an_episode_depends_on_its_start_only(num_envs: int) -> None:
    alone, together = collect(1), collect(num_envs)
    assert set(alone) == set(together) == set(starts(7))
    for start in alone:
        assert_same(alone[start], together[start])


def test_what_an_episode_holds() -> None:
    (episode,) = run_episodes(chunk_expert, line_env(1), starts(1), replan_steps=3, keep_observation=True)
    assert episode.env_id == "test/line"
    assert episode.task == "go left"
    assert episode.decision.tolist() == list(range(0, episode.length, 3))
    assert episode.action.shape == (episode.length, 1)
    assert episode.action.dtype == episode.reward.dtype == np.float32
    assert episode.observation["observation.images.top"].shape == (len(episode.decision), 64, 96, 3)
    assert "task" not in episode.observation
    position, goal = episode.last_observation["observation.state"]
    assert abs(position - goal) == pytest.approx(episode.metrics["distance"], abs=1e-6)
    assert episode.reward[-1] == pytest.approx(-episode.metrics["distance"])
    assert (episode.terminated, episode.truncated) == (episode.success, not episode.success)
    assert episode.log_prob is None
    assert episode.info["wall_time"] >= 0
    assert episode.summary().return_ == pytest.approx(float(episode.reward.sum()))


def test_observations_are_left_out_unless_asked_for() -> None:
    (episode,) = run_episodes(expert, line_env(1), starts(1), replan_steps=1)
    assert episode.observation == episode.last_observation == {}
    assert len(episode.decision) == episode.length


def test_log_prob_of_an_action_sample_is_kept() -> None:
    def act(observation: dict[str, Any]) -> ActionSample:
        state = observation["observation.state"]
        return ActionSample(chunk_expert(observation), state[:, :1])

    (episode,) = run_episodes(act, line_env(2), starts(1), replan_steps=3, keep_observation=True)
    assert episode.log_prob is not None
    np.testing.assert_array_equal(episode.log_prob, episode.observation["observation.state"][:, :1])


@pytest.mark.parametrize("num_envs", [1, 3])
def test_on_frame_sees_every_state_and_changes_nothing(num_envs: int) -> None:
    frames: list[Start] = []
    watched = collect(num_envs, on_frame=lambda _index, start: frames.append(start))
    plain = collect(num_envs)
    for start in plain:
        assert_same(watched[start], plain[start])
        assert frames.count(start) == 1 + plain[start].length


def test_all_environments_are_kept_busy() -> None:
    seen: list[int] = []

    def act(observation: dict[str, Any]) -> Any:
        seen.append(len(observation["task"]))
        return expert(observation) * 0

    assert len(list(run_episodes(act, line_env(3), starts(6), replan_steps=1))) == 6
    assert len(seen) == 2 * 12


def test_environments_that_never_began_show_a_real_observation() -> None:
    def act(observation: dict[str, Any]) -> Any:
        assert all(observation["task"])
        assert (observation["observation.images.top"] != 0).all()
        return expert(observation)

    assert len(list(run_episodes(act, line_env(5), starts(2), replan_steps=1))) == 2


def test_no_starts_no_episodes() -> None:
    assert list(run_episodes(expert, line_env(2), [], replan_steps=1)) == []


@pytest.mark.parametrize(("replan_steps", "match"), [(0, "at least 1"), (5, "chunks of 4 actions")])
def test_bad_replan_steps(replan_steps: int, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        list(run_episodes(chunk_expert, line_env(1), starts(1), replan_steps=replan_steps))


def test_wrong_chunk_shape() -> None:
    with pytest.raises(EnvError, match=r"found \(1, 1\)"):
        list(run_episodes(lambda o: expert(o)[:, 0], line_env(1), starts(1), replan_steps=1))


def test_an_environment_that_stands_still_is_named() -> None:
    env = line_env(1)
    step = env.step

    def stuck(action_chunk: Any) -> Any:
        answer = step(action_chunk)
        return replace(answer, executed=answer.executed * 0)

    env.step = stuck  # type: ignore[method-assign]
    with pytest.raises(EnvError, match="environment 0 executed no action"):
        list(run_episodes(expert, env, starts(1), replan_steps=1))
