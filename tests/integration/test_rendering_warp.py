"""The renderer that needs no OpenGL, through the tests of the others; it compiles its kernels on the first run."""

import pytest

from burnish.envs import rendering
from tests.unit.envs.test_rendering import (  # noqa: F401
    test_first_row_is_on_top_and_the_background_is_black,
    test_interleaved_renderers_do_not_mix_their_contexts,
    test_refresh_shows_a_changed_texture,
    test_the_model_keeps_its_visual_settings,
    test_the_picture_belongs_to_the_caller,
    test_threads_share_a_renderer_and_close_it_from_another,
)


@pytest.fixture(scope="module")
def backend() -> str:
    problem = rendering.probe("warp")
    assert not problem, problem  # a wheel is all it needs
    return "warp"
