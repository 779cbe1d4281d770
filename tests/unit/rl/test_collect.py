from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, EnvError
from burnish.core.seeding import stream
from burnish.core.step import Start
from burnish.policies.mlp import Config as Mlp
from burnish.policies.mlp import MLPPolicy
from burnish.rl.collect import Collector
from burnish.rl.samplers.fixed import FixedSampler
from burnish.rl.samplers.group import Config as Group
from burnish.rl.samplers.uniform import Config as Uniform
from tests.unit.rl.count_env import SPEC, count_envs


def make_policy(chunk_steps: int = 4, **options: Any) -> MLPPolicy:
    return Mlp(chunk_steps=chunk_steps, hidden=(8,), **options).build(SPEC, generator=stream(0, "weights"))


def starts(*inits: int, task: str = "terminate") -> FixedSampler:
    return FixedSampler([Start(task, init, 1 << 20) for init in inits])


def collector_for(
    num_envs: int = 1, policy: MLPPolicy | None = None, **options: Any
) -> tuple[Collector, MLPPolicy, list[Any]]:
    policy = policy or make_policy()
    env, members = count_envs(num_envs)
    return Collector(env, policy, **options), policy, members


def test_a_stream_keeps_rewards_ends_and_last_observations() -> None:
    # Episodes of 6 and 3 steps in chunks of 4: decisions execute 4, 2, 3.
    collector, policy, _ = collector_for()
    rollout = collector.collect_chunks(policy, starts(5, 2), 3, generator=stream(0, "c"))
    assert rollout.executed[:, 0].tolist() == [4, 2, 3]
    assert rollout.reward[:, 0].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [1, 2, 3, 0]]
    assert rollout.terminated[:, 0].tolist() == [False, True, True]
    assert not rollout.truncated.any()
    assert rollout.observation["observation.state"][:, 0].tolist() == [[5, 0], [5, 4], [2, 0]]
    assert rollout.last_index.tolist() == [[1, 0], [2, 0]]
    assert rollout.last_observation["observation.state"].tolist() == [[5, 6], [2, 3]]
    assert [(e.length, e.return_, e.success) for e in rollout.episodes] == [(6, 21.0, True), (3, 6.0, True)]
    assert rollout.episode_numbers == (0, 1)
    assert rollout.episodes[0].metrics == {"success": 1.0, "steps": 6.0}


def test_an_episode_goes_on_in_the_next_rollout() -> None:
    collector, policy, members = collector_for()
    sampler = starts(9)
    first = collector.collect_chunks(policy, sampler, 2, generator=stream(0, "c"))
    assert first.last_index.tolist() == [[1, 0]]
    assert first.last_observation["observation.state"].tolist() == [[9, 8]]
    second = collector.collect_chunks(policy, sampler, 1, generator=stream(0, "c"))
    assert second.observation["observation.state"][:, 0].tolist() == [[9, 8]]
    assert second.episodes[0].return_ == 55.0
    assert second.episode.tolist() == [[0]]
    assert len(members[0].begun) == 1


def test_truncation_is_told_from_termination() -> None:
    collector, policy, _ = collector_for()
    rollout = collector.collect_chunks(policy, starts(1, task="truncate"), 1, generator=stream(0, "c"))
    assert rollout.truncated.tolist() == [[True]]
    assert not rollout.terminated.any()


def test_replan_steps_offers_the_head_of_a_chunk_and_keeps_all_of_it() -> None:
    collector, policy, _ = collector_for(replan_steps=2)
    rollout = collector.collect_chunks(policy, starts(4), 3, generator=stream(0, "c"))
    assert rollout.executed[:, 0].tolist() == [2, 2, 1]
    assert rollout.action_chunk.shape == (3, 1, 4, 2)
    assert rollout.log_prob.shape == (3, 1, 4)
    assert rollout.reward[:, 0].tolist() == [[1, 2, 0, 0], [3, 4, 0, 0], [5, 0, 0, 0]]


@pytest.mark.parametrize("replan_steps", [-1, 5])
def test_replan_steps_must_fit_the_chunk(replan_steps: int) -> None:
    with pytest.raises(ConfigError, match=r"within \[1, 4\].*found"):
        collector_for(replan_steps=replan_steps)


def test_whole_episodes_leave_idle_decisions_unexecuted() -> None:
    # Two environments, three episodes of 1, 9 and 2 steps: the second environment needs three chunks of 4.
    collector, policy, members = collector_for(2)
    rollout = collector.collect_episodes(policy, starts(0, 8, 1), 3, generator=stream(0, "c"))
    assert rollout.executed.tolist() == [[1, 4], [2, 4], [0, 1]]
    assert rollout.episode_numbers == (0, 2, 1)
    assert [e.length for e in rollout.episodes] == [1, 2, 9]
    assert len(rollout.batch()) == 5
    assert rollout.reward[2, 0].tolist() == [0, 0, 0, 0]
    assert [len(member.begun) for member in members] == [2, 1]


def test_fewer_whole_episodes_than_environments() -> None:
    collector, policy, _ = collector_for(3)
    for _ in range(2):
        rollout = collector.collect_episodes(policy, starts(0, 4), 2, generator=stream(0, "c"))
        assert rollout.executed.sum() == 6
        assert len(rollout.episodes) == 2
        assert not rollout.executed[:, 2].any()


def test_whole_episodes_refuse_to_drop_running_ones() -> None:
    collector, policy, _ = collector_for()
    collector.collect_chunks(policy, starts(19), 1, generator=stream(0, "c"))
    with pytest.raises(EnvError, match="while others run"):
        collector.collect_episodes(policy, starts(1), 1, generator=stream(0, "c"))


def test_equal_starts_in_a_row_are_a_group() -> None:
    collector, policy, _ = collector_for(2)
    sampler = Group(size=3).build(SPEC, generator=stream(0, "s"))
    rollout = collector.collect_episodes(policy, sampler, 6, generator=stream(0, "c"))
    start = {number: e.start for number, e in zip(rollout.episode_numbers, rollout.episodes, strict=True)}
    ran = rollout.executed > 0
    group = dict(zip(rollout.episode[ran].tolist(), rollout.group[ran].tolist(), strict=True))
    assert [group[i] for i in range(6)] == [0, 0, 0, 1, 1, 1]
    assert start[0] == start[1] == start[2] != start[3] == start[5]


def test_only_needed_keys_are_stored_and_the_actor_sees_no_privileged_ones() -> None:
    class Watched(MLPPolicy):
        def act(self, observation: Any, **options: Any) -> Any:
            seen.append(set(observation))
            return super().act(observation, **options)

    seen: list[set[str]] = []
    config = Mlp(chunk_steps=4, hidden=(8,), critic_keys=("privileged.left",))
    policy = Watched(config, config.build(SPEC, generator=stream(0)).spec, generator=stream(0), statistics=None)
    collector, _, _ = collector_for(policy=policy)
    rollout = collector.collect_chunks(policy, starts(3), 1, generator=stream(0, "c"))
    assert set(rollout.observation) == {"observation.state", "privileged.left"}
    assert seen == [{"observation.state"}]
    plain, policy, _ = collector_for()
    rollout = plain.collect_chunks(policy, starts(3), 1, generator=stream(0, "c"))
    assert set(rollout.observation) == {"observation.state"}
    extra, policy, _ = collector_for(extra_keys=("privileged.left", "task"))
    rollout = extra.collect_chunks(policy, starts(3), 1, generator=stream(0, "c"))
    assert rollout.observation["task"] == [["terminate"]]
    assert rollout.last_observation["task"] == ["terminate"]
    with pytest.raises(ConfigError, match=r"gives no \['privileged.right'\]"):
        collector_for(extra_keys=("privileged.right",))


def test_state_and_interruption_equal_an_uninterrupted_collector() -> None:
    def run(collector: Collector, policy: MLPPolicy, sampler: Any, t: int) -> list[Any]:
        rollout = collector.collect_chunks(policy, sampler, 3, generator=stream(t, "c"))
        return [rollout.action_chunk.copy(), rollout.reward.copy(), rollout.episode.copy(), rollout.group.copy()]

    sampler = Uniform().build(SPEC, generator=stream(0, "s"))
    collector, policy, _ = collector_for(3)
    run(collector, policy, sampler, 0)
    state, sampled = collector.state_dict(), sampler.state_dict()
    collector.interrupt()
    wanted = [run(collector, policy, sampler, t) for t in (1, 2)]
    again, policy, _ = collector_for(3)
    sampler = Uniform().build(SPEC, generator=stream(9, "other"))
    again.load_state_dict(state)
    sampler.load_state_dict(sampled)
    for t, rows in zip((1, 2), wanted, strict=True):
        for found, expected in zip(run(again, policy, sampler, t), rows, strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(ConfigError, match="3 environments, found 1"):
        collector_for(1)[0].load_state_dict(state)


def test_an_interrupted_episode_begins_again_from_its_start() -> None:
    collector, policy, members = collector_for()
    sampler = starts(9, 1)
    collector.collect_chunks(policy, sampler, 1, generator=stream(0, "c"))
    collector.interrupt()
    rollout = collector.collect_chunks(policy, sampler, 3, generator=stream(0, "c"))
    assert [start.init for start in members[0].begun] == [9, 9]
    assert [e.length for e in rollout.episodes] == [10]
    assert rollout.episode[:, 0].tolist() == [0, 0, 0]


def test_env_that_reuses_its_arrays_does_not_spoil_the_rollout() -> None:
    class InPlace:
        """Hands out the same arrays again and again, as shared memory does."""

        def __init__(self, env: Any) -> None:
            self.env, self.spec, self.num_envs = env, env.spec, env.num_envs
            self.shared: dict[str, Any] = {}

        def share(self, observation: dict[str, Any]) -> dict[str, Any]:
            for key, item in observation.items():
                if isinstance(item, np.ndarray):
                    self.shared.setdefault(key, item)[:] = item
                else:
                    self.shared[key] = item
            return self.shared

        def reset(self, starts: Any, where: Any = None) -> Any:
            return self.share(self.env.reset(starts, where))

        def step(self, chunk: Any) -> Any:
            step = self.env.step(chunk)
            self.share(step.observation)
            return type(step)(self.shared, step.reward, step.executed, step.terminated, step.truncated, step.metrics)

        def close(self) -> None:
            self.env.close()

    policy = make_policy()
    plain, shared = count_envs(2)[0], InPlace(count_envs(2)[0])
    rollouts = [
        Collector(env, policy).collect_chunks(policy, starts(5, 2, 3), 4, generator=stream(0, "c"))
        for env in (plain, shared)
    ]
    for key in ("observation", "last_observation"):
        found = [getattr(rollout, key)["observation.state"] for rollout in rollouts]
        np.testing.assert_array_equal(*found)


def test_a_chunk_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    collector, _, _ = collector_for()
    with pytest.raises(EnvError, match=r"\(1, 3, 2\), expected \(1, 4, 2\)"):
        collector.collect_chunks(make_policy(3), starts(5), 1, generator=stream(0, "c"))
