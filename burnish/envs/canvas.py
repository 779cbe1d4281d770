"""What draws behind a Renderer: an OpenGL context, a ray tracer, or nothing; used by one thread at a time."""

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np

from burnish.core.errors import EnvError
from burnish.core.spec import Array

BACKEND_VARIABLE = "BURNISH_RENDER_BACKEND"
"""Environment variable that names the backend for "auto"."""

type Borrow = Callable[[], AbstractContextManager[None]]

_NULL_COLOUR = (255, 0, 255)


class Canvas(Protocol):
    """One picture at a time of one model."""

    def draw(self, data: mujoco.MjData, camera: int | mujoco.MjvCamera) -> Array:
        """Return (H, W, 3) uint8, first row on top."""
        ...

    def close(self) -> None:
        """Free the context; may be called twice, from any thread."""
        ...


@dataclass(frozen=True)
class Picture:
    """What a canvas draws, and how."""

    model: mujoco.MjModel
    """Compiled model."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    profile: str
    """Visual quality."""
    backend: str
    """What draws."""
    option: mujoco.MjvOption
    """Which groups of geoms and sites are shown."""


class NullCanvas:
    """Magenta pictures, which nobody takes for a scene; for runs that need shapes but no content."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (height, width)

    def draw(self, data: mujoco.MjData, camera: int | mujoco.MjvCamera) -> Array:
        """Return (H, W, 3) uint8, first row on top."""
        del data, camera
        return np.full((*self._size, 3), _NULL_COLOUR, np.uint8)

    def close(self) -> None:
        """Free the context; may be called twice, from any thread."""


class GlCanvas:
    """An OpenGL context with its MuJoCo render context; current only inside a call.

    Whatever was current before is current again afterwards: Gymnasium's renderer, for one, never asks.
    """

    def __init__(self, picture: Picture) -> None:
        model, width, height, profile = picture.model, picture.width, picture.height, picture.profile
        context, self._borrow = _gl(picture.backend)
        self._option = picture.option
        self._model = model
        self._scene = mujoco.MjvScene(model, maxgeom=2 * (model.ngeom + model.nsite) + 1000)
        self._free_camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(model, self._free_camera)
        self._fixed_camera = mujoco.MjvCamera()
        self._fixed_camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        for flag in _FLAGS_OFF[profile]:
            self._scene.flags[flag] = False
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), np.uint8)
        with self._borrow():
            self._gl: Any = context(width, height)
            self._gl.make_current()
            with _visuals(model, width, height, profile):
                self._render = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._render)

    def draw(self, data: mujoco.MjData, camera: int | mujoco.MjvCamera) -> Array:
        """Return (H, W, 3) uint8, first row on top."""
        view = camera
        if isinstance(camera, int):
            view = self._free_camera if camera < 0 else self._fixed_camera
            if camera >= 0:
                self._fixed_camera.fixedcamid = camera
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, view, everything, self._scene)
        with self._borrow():
            self._gl.make_current()
            mujoco.mjr_render(self._rect, self._scene, self._render)
            mujoco.mjr_readPixels(self._pixels, None, self._rect, self._render)
        return np.ascontiguousarray(self._pixels[::-1])

    def close(self) -> None:
        """Free the context; may be called twice, from any thread."""
        if self._gl is None:
            return
        with self._borrow():
            # MuJoCo frees in whatever context is current, and another renderer's objects have the same numbers.
            self._gl.make_current()
            self._render.free()
            self._gl.free()
        self._gl = None


class WarpCanvas:
    """Ray tracing by mujoco-warp on the CPU; needs no OpenGL library."""

    def __init__(self, picture: Picture) -> None:
        import warp

        warp.config.log_level = max(warp.config.log_level, warp.LOG_ERROR)
        import mujoco_warp

        self._warp, self._tracer = warp, mujoco_warp
        model, profile = picture.model, picture.profile
        self._size = (picture.width, picture.height)
        self._settings = {
            "cam_res": self._size,
            "render_rgb": True,
            "use_shadows": profile != "fast",
            "samples_per_pixel": 2 if profile == "fidelity" else 1,
            "render_skybox": profile == "fidelity",
            "enabled_geom_groups": np.flatnonzero(picture.option.geomgroup).tolist(),
        }
        with _tracing:
            # Only the picture comes from here, so settings of the dynamics that warp does not know are put aside.
            self._host = _copy_for_tracing(model)
            with warp.ScopedDevice("cpu"):
                self._model = mujoco_warp.put_model(self._host)
                self._data = mujoco_warp.make_data(self._host, nworld=1, nconmax=1, njmax=1)
                self._colour = warp.zeros((1, picture.height, picture.width), dtype=warp.vec3)
        self._contexts: dict[int, Any] = {}

    def draw(self, data: mujoco.MjData, camera: int | mujoco.MjvCamera) -> Array:
        """Return (H, W, 3) uint8, first row on top."""
        if not isinstance(camera, int) or camera < 0:
            raise EnvError("Backend 'warp' draws the model's own cameras only; name one, or add one to the model.")
        with _tracing, self._warp.ScopedDevice("cpu"):
            for name in ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"):
                target = getattr(self._data, name).numpy()  # a view on the CPU
                target[...] = getattr(data, name).reshape(target.shape)
            context = self._contexts.get(camera)
            if context is None:
                context = self._tracer.create_render_context(self._host, cam_active=[camera], **self._settings)
                self._contexts[camera] = context
            self._tracer.refit_bvh(self._model, self._data, context)
            self._tracer.render(self._model, self._data, context)
            self._tracer.get_rgb(context, 0, self._colour)
            colour: Array = self._colour.numpy()  # type: ignore[no-untyped-call]
            return np.asarray(np.rint(colour[0] * 255.0), np.uint8)

    def close(self) -> None:
        """Free the context; may be called twice, from any thread."""
        self._contexts = {}


_tracing = threading.RLock()


def _copy_for_tracing(model: mujoco.MjModel) -> mujoco.MjModel:
    host = copy.copy(model)
    plain = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name in ("integrator", "cone", "solver", "noslip_iterations", "disableflags", "enableflags"):
        setattr(host.opt, name, getattr(plain.opt, name))
    return host


def _gl(backend: str) -> tuple[Callable[[int, int], Any], Borrow]:
    """Return (context class, what puts the current context back), importing the GL library now.

    MuJoCo's own choice by ``MUJOCO_GL`` is made at its first import, which is long past, so the context is imported
    by its module instead.
    """
    platform = os.environ.get("PYOPENGL_PLATFORM", backend)
    if platform.lower() != backend:
        raise EnvError(
            f"This process uses OpenGL through '{platform}' already (PYOPENGL_PLATFORM), and cannot also use "
            f"'{backend}'. Start a new process, or set {BACKEND_VARIABLE}={platform}."
        )
    os.environ.setdefault("LP_NUM_THREADS", "0")  # more threads of the software rasteriser cost time, and give none
    try:
        return _osmesa() if backend == "osmesa" else _egl()
    except (AttributeError, ImportError, OSError) as error:  # what PyOpenGL raises depends on which library is missing
        raise EnvError(f"the OpenGL library of '{backend}' cannot be loaded ({error})") from None


def _egl() -> tuple[Callable[[int, int], Any], Borrow]:
    from mujoco import egl
    from mujoco.egl import EGL

    @contextmanager
    def borrow() -> Iterator[None]:
        context = EGL.eglGetCurrentContext()
        if context:
            display = EGL.eglGetCurrentDisplay()
            surfaces = EGL.eglGetCurrentSurface(EGL.EGL_DRAW), EGL.eglGetCurrentSurface(EGL.EGL_READ)
        try:
            yield
        finally:
            if context:
                EGL.eglMakeCurrent(display, *surfaces, context)
            elif egl.EGL_DISPLAY:
                EGL.eglMakeCurrent(egl.EGL_DISPLAY, EGL.EGL_NO_SURFACE, EGL.EGL_NO_SURFACE, EGL.EGL_NO_CONTEXT)

    return egl.GLContext, borrow


def _osmesa() -> tuple[Callable[[int, int], Any], Borrow]:
    from mujoco.osmesa import GL, GLContext, osmesa

    @contextmanager
    def borrow() -> Iterator[None]:
        context = osmesa.OSMesaGetCurrentContext()
        before = osmesa.OSMesaGetColorBuffer(context) if context else None
        try:
            yield
        finally:
            if before is None:
                osmesa.OSMesaMakeCurrent(None, None, GL.GL_FLOAT, 0, 0)
            else:
                width, height, _, buffer = before
                osmesa.OSMesaMakeCurrent(context, buffer, GL.GL_FLOAT, width, height)

    return GLContext, borrow


_FLAGS_OFF: dict[str, tuple[int, ...]] = {
    "fast": (
        mujoco.mjtRndFlag.mjRND_SHADOW,
        mujoco.mjtRndFlag.mjRND_REFLECTION,
        mujoco.mjtRndFlag.mjRND_SKYBOX,
        mujoco.mjtRndFlag.mjRND_HAZE,
    ),
    "shadows": (
        mujoco.mjtRndFlag.mjRND_REFLECTION,
        mujoco.mjtRndFlag.mjRND_SKYBOX,
        mujoco.mjtRndFlag.mjRND_HAZE,
    ),
    "fidelity": (),
}
_QUALITY: dict[str, dict[str, int]] = {
    "fast": {"shadowsize": 0, "offsamples": 0, "numslices": 10, "numstacks": 6, "numquads": 1},
    "shadows": {"shadowsize": 256, "offsamples": 0, "numslices": 10, "numstacks": 6, "numquads": 1},
    "fidelity": {},
}


@contextmanager
def _visuals(model: mujoco.MjModel, width: int, height: int, profile: str) -> Iterator[None]:
    """Give the model a profile's quality for as long as a context is made."""
    quality, size = model.vis.quality, model.vis.global_
    before = {name: getattr(quality, name) for name in _QUALITY[profile]}
    before_size = size.offwidth, size.offheight
    size.offwidth, size.offheight = width, height
    for name, value in _QUALITY[profile].items():
        setattr(quality, name, value)
    try:
        yield
    finally:
        size.offwidth, size.offheight = before_size
        for name, value in before.items():
            setattr(quality, name, value)
