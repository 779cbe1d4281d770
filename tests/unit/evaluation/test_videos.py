from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

from burnish.core.errors import DatasetError, EnvError
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.videos import VideoWriter, choose, codec, even, load_videos, record_videos
from tests.unit.evaluation.press_env import SPEC, PressPolicy, press_env, starts


def evaluated(force=24.0, spec=SPEC):
    policy, env = PressPolicy(force), press_env(3, spec)
    return policy, env, evaluate(policy, env, starts(30), replan_steps=5)


def frames(file):
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)], stream.average_rate


def test_first_successes_and_failures_are_filmed(tmp_path):
    policy, env, result = evaluated()
    videos = record_videos(policy, env, result, tmp_path, successes=2, failures=3)
    assert [video.start for video in videos] == choose(result, 2, 3)
    assert [video.success for video in videos] == [True, True, False, False, False]
    suffix = codec()[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *(f"failure_{i}.{suffix}" for i in range(3)),
        *(f"success_{i}.{suffix}" for i in range(2)),
        "videos.json",
    ]
    outcome = {row.start: row for row in result.episodes}
    assert all(video.metrics == outcome[video.start].metrics for video in videos)
    pictures, rate = frames(videos[0].file)
    assert len(pictures) == 1 + 10
    assert rate == 10
    assert pictures[0].shape == (34, 48, 3)
    assert abs(float(pictures[0].mean()) - 235) < 4
    assert pictures[-1][:30].mean() < 150


def test_the_index_is_read_back_and_replaced(tmp_path):
    policy, env, result = evaluated()
    record_videos(policy, env, result, tmp_path, successes=2, failures=2)
    videos = record_videos(policy, env, result, tmp_path, successes=1, failures=0)
    assert load_videos(tmp_path) == videos
    assert len(list(tmp_path.iterdir())) == 2
    assert videos[0].media_type in ("video/mp4", "video/webm")


def test_fast_control_leaves_frames_out(tmp_path):
    policy, env, result = evaluated(spec=replace(SPEC, control_dt=0.01))
    video = record_videos(policy, env, result, tmp_path, successes=1, failures=0)[0]
    pictures, rate = frames(video.file)
    assert len(pictures) == 4
    assert float(rate) == pytest.approx(100 / 3, abs=0.01)


class Blind:
    """An environment that cannot show itself."""

    def __init__(self):
        env = press_env()
        self.spec, self.num_envs = env.spec, env.num_envs
        self.reset, self.step, self.close = env.reset, env.step, env.close


def test_an_environment_without_render_is_refused(tmp_path):
    policy, _, result = evaluated()
    with pytest.raises(EnvError, match=r"Blind has none"):
        record_videos(policy, Blind(), result, tmp_path)


def test_a_film_that_breaks_off_leaves_no_file(tmp_path):
    policy, env, result = evaluated()
    rows = tuple(replace(row, start=replace(row.start, task="none")) for row in result.episodes[1:])
    broken = replace(result, episodes=(result.episodes[0], *rows))
    with pytest.raises(EnvError, match="unknown task"):
        record_videos(policy, env, broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_indexes_are_refused(tmp_path):
    assert load_videos(tmp_path) == []
    (tmp_path / "videos.json").write_text("[{}]")
    with pytest.raises(DatasetError, match="damaged"):
        load_videos(tmp_path)
    policy, env, result = evaluated()
    (tmp_path / "videos.json").unlink()
    record_videos(policy, env, result, tmp_path, successes=1, failures=0)[0].file.unlink()
    with pytest.raises(DatasetError, match="not there: success_0"):
        load_videos(tmp_path)


@pytest.mark.parametrize("shape", [(16, 16, 3), (17, 18, 3), (18, 17, 3)])
def test_pictures_get_even_sides(tmp_path, shape):
    picture = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    assert even(picture).shape == (18 if shape[0] > 16 else 16, 18 if shape[1] > 16 else 16, 3)
    writer = VideoWriter(tmp_path / f"a.{codec()[1]}", Fraction(30))
    writer.add(picture)
    writer.close()
    assert len(frames(writer.file)[0]) == 1
