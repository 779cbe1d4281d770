import os
import subprocess
import sys
import threading

import mujoco
import numpy as np
import pytest

from burnish.core.errors import ConfigError, EnvError
from burnish.envs import rendering
from burnish.envs.rendering import Renderer

SCENE = """
<mujoco>
  <visual><global offwidth="320" offheight="200"/><quality shadowsize="1024" offsamples="4"/></visual>
  <worldbody>
    <light pos="0 0 2" dir="0 0 -1" specular="0 0 0"/>
    <geom name="box" type="box" size=".4 .4 .1" pos="0 .3 0" rgba="{rgba}"/>
    <site name="mark" pos="0 -.35 0" size=".1" rgba="1 1 1 1"/>
    <geom name="hidden" type="sphere" size=".1" pos=".35 -.35 0" rgba="1 1 1 1" group="3"/>
    <camera name="top" pos="0 0 1.2"/>
    <camera name="away" pos="0 0 1.2" xyaxes="1 0 0 0 -1 0"/>
  </worldbody>
</mujoco>
"""


def make(rgba: str = "1 0 0 1") -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(SCENE.format(rgba=rgba))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def is_colour(pixel: np.ndarray, channel: int) -> bool:
    others = np.delete(pixel, channel)
    return bool(pixel[channel] > 60 and (others < 0.5 * pixel[channel]).all())


@pytest.fixture(params=["egl", "osmesa"], scope="module")
def backend(request: pytest.FixtureRequest) -> str:
    problem = rendering.probe(request.param)
    if problem:
        pytest.skip(f"{request.param}: {problem}")
    if request.param == "osmesa" and os.environ.get("PYOPENGL_PLATFORM", "osmesa") != "osmesa":
        pytest.skip("this process uses egl already; run with -k osmesa")
    return str(request.param)


@pytest.mark.parametrize("profile", ["fast", "shadows"])
def test_first_row_is_on_top_and_the_background_is_black(backend: str, profile: str) -> None:
    model, data = make()
    renderer = Renderer(model, 24, 16, profile=profile, backend=backend)
    picture = renderer.render(data, "top")
    assert picture.shape == (16, 24, 3)
    assert picture.dtype == np.uint8
    assert is_colour(picture[4, 12], 0)  # the box lies at +y, which is up in the camera
    assert picture[14].max() == 0  # neither the site nor the hidden geom is drawn
    renderer.close()


def test_the_picture_belongs_to_the_caller(backend: str) -> None:
    model, data = make()
    renderer = Renderer(model, 16, 16, backend=backend)
    first = renderer.render(data, "top")
    kept = first.copy()
    model.geom("box").pos[1] = -0.3
    mujoco.mj_forward(model, data)
    second = renderer.render(data, "top")
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)
    renderer.close()


def test_interleaved_renderers_do_not_mix_their_contexts(backend: str) -> None:
    scenes = [make("1 0 0 1"), make("0 1 0 1"), make("0 0 1 1")]
    renderers = [Renderer(model, 16 + 4 * i, 16, backend=backend) for i, (model, _) in enumerate(scenes)]
    for _ in range(3):
        for channel, (renderer, (_, data)) in enumerate(zip(renderers, scenes, strict=True)):
            assert is_colour(renderer.render(data, 0)[4, 8], channel)
    renderers[0].close()
    assert is_colour(renderers[1].render(scenes[1][1], 0)[4, 8], 1)  # freeing one leaves the others whole
    renderers[1].close()
    renderers[2].close()


def test_a_context_that_was_current_is_so_again(backend: str) -> None:
    context = __import__(f"mujoco.{backend}", fromlist=["GLContext"]).GLContext(8, 8)
    context.make_current()
    model, data = make("0 0 1 1")
    theirs = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
    scene, camera, rect = mujoco.MjvScene(model, 100), mujoco.MjvCamera(), mujoco.MjrRect(0, 0, 8, 8)
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    everything = mujoco.mjtCatBit.mjCAT_ALL.value
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, everything, scene)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, theirs)
    ours = Renderer(*make("1 0 0 1")[:1], 8, 8, backend=backend)
    pictures = []
    for _ in range(2):
        pixels = np.zeros((8, 8, 3), np.uint8)
        mujoco.mjr_render(rect, scene, theirs)
        mujoco.mjr_readPixels(pixels, None, rect, theirs)
        pictures.append(pixels)
        assert is_colour(ours.render(data, 0)[2, 4], 0)
    ours.close()
    mujoco.mjr_render(rect, scene, theirs)
    mujoco.mjr_readPixels(pixels, None, rect, theirs)
    theirs.free()
    context.free()
    assert all(is_colour(picture[6, 4], 2) for picture in [*pictures, pixels])


def test_threads_share_a_renderer_and_close_it_from_another(backend: str) -> None:
    model, data = make()
    renderer = Renderer(model, 16, 16, backend=backend)
    expected = renderer.render(data, "top")
    wrong: list[int] = []

    def draw() -> None:
        wrong.extend(i for i in range(10) if not np.array_equal(renderer.render(data, "top"), expected))

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    closer = threading.Thread(target=renderer.close)
    closer.start()
    closer.join()
    with pytest.raises(EnvError, match="closed"):
        renderer.render(data, "top")


def test_the_model_keeps_its_visual_settings(backend: str) -> None:
    model, data = make()
    Renderer(model, 16, 16, backend=backend).render(data, 0)
    quality, size = model.vis.quality, model.vis.global_
    assert (quality.shadowsize, quality.offsamples, size.offwidth, size.offheight) == (1024, 4, 320, 200)


def test_refresh_shows_a_changed_texture(backend: str) -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><asset><texture name='t' type='2d' builtin='flat' rgb1='1 0 0' width='4' height='4'/>"
        "<material name='m' texture='t'/></asset><worldbody><light pos='0 0 2' specular='0 0 0'/>"
        "<geom type='plane' size='1 1 .1' material='m'/><camera name='top' pos='0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = Renderer(model, 8, 8, backend=backend)
    assert is_colour(renderer.render(data, 0)[4, 4], 0)
    model.tex_data[:] = np.tile([0, 0, 255], model.tex_data.size // 3).astype(np.uint8)
    renderer.refresh()
    assert is_colour(renderer.render(data, 0)[4, 4], 2)
    renderer.close()


def test_shadows_cost_detail_only_where_asked() -> None:
    if rendering.probe("egl"):
        pytest.skip("egl does not work here")
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='1 0 2' dir='-.4 0 -1'/><geom type='plane' size='2 2 .1'/>"
        "<geom type='sphere' size='.2' pos='0 0 .5'/><camera name='top' pos='0 0 3'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    pictures = {}
    for profile in ("fast", "shadows"):
        renderer = Renderer(model, 64, 64, profile=profile, backend="egl")
        pictures[profile] = renderer.render(data, "top").astype(int)
        renderer.close()
    darker = (pictures["fast"] - pictures["shadows"]).max(axis=-1) > 20
    assert 20 < darker.sum() < 2000


def test_free_camera() -> None:
    if rendering.probe("egl"):
        pytest.skip("egl does not work here")
    model, data = make()
    renderer = Renderer(model, 16, 16, backend="egl")
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    assert np.array_equal(renderer.render(data), renderer.render(data, camera))
    renderer.close()


def test_protocol_names_profile_and_backend() -> None:
    model, data = make()
    renderer = Renderer(model, 6, 4, profile="shadows", backend="null")
    assert renderer.protocol == {"profile": "shadows", "backend": "null", "width": 6, "height": 4}
    assert (renderer.render(data) == (255, 0, 255)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"profile": "fats"}, "no render profile 'fats'. Did you mean 'fast'"),
        ({"backend": "elg"}, "no render backend 'elg'. Did you mean 'egl'"),
        ({"width": 0}, "at least one pixel each way; found width 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    model, _ = make()
    given: dict[str, object] = {"width": 8, "height": 8, "backend": "null", **arguments}
    with pytest.raises(ConfigError, match=message):
        Renderer(model, **given)  # type: ignore[arg-type]


def test_unknown_cameras() -> None:
    model, data = make()
    renderer = Renderer(model, 8, 8, backend="null")
    with pytest.raises(EnvError, match=r"no camera 'tip'\. Did you mean 'top'"):
        renderer.render(data, "tip")
    with pytest.raises(EnvError, match="no camera 2; it has 2: top, away"):
        renderer.render(data, 2)


def test_auto_takes_the_named_backend_and_refuses_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rendering.BACKEND_VARIABLE, "null")
    assert rendering.choose_backend() == "null"
    monkeypatch.setenv(rendering.BACKEND_VARIABLE, "vulkan")
    with pytest.raises(ConfigError, match="BURNISH_RENDER_BACKEND is 'vulkan'"):
        rendering.choose_backend()


def test_a_broken_or_hanging_probe_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("egl", "osmesa", "warp"):
        monkeypatch.setitem(rendering.PROBE_TIMEOUT_S, name, 0.001)
    monkeypatch.delenv(rendering.BACKEND_VARIABLE, raising=False)
    monkeypatch.setattr(rendering, "probe", rendering.probe.__wrapped__)
    with pytest.raises(EnvError, match="No renderer works") as caught:
        rendering.choose_backend()
    assert "no picture within" in str(caught.value)
    assert "apt-get install -y libegl1 libgl1 libgl1-mesa-dri" in str(caught.value)
    assert "pip install 'burnish[warp]'" in str(caught.value)
    with pytest.raises(EnvError, match="'osmesa' does not work here: no picture"):
        rendering.choose_backend("osmesa")


def test_mujoco_may_be_imported_first_and_nothing_is_printed_at_exit() -> None:
    if rendering.probe("egl"):
        pytest.skip("egl does not work here")
    code = (
        "import mujoco\n"
        "from burnish.envs.rendering import Renderer\n"
        "model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size=\".1\"/></worldbody></mujoco>')\n"
        "data = mujoco.MjData(model)\n"
        "mujoco.mj_forward(model, data)\n"
        "renderer = Renderer(model, 16, 16)\n"
        "print(renderer.backend, renderer.render(data).max() > 0)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, rendering.BACKEND_VARIABLE: "egl"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("egl True\n", "", 0)


def test_a_second_gl_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOPENGL_PLATFORM", "egl")
    monkeypatch.setenv(rendering.BACKEND_VARIABLE, "osmesa")
    model, data = make()
    with pytest.raises(EnvError, match=r"uses OpenGL through 'egl' already .* cannot also use 'osmesa'"):
        Renderer(model, 8, 8).render(data)
