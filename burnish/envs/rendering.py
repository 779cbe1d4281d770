"""Offscreen pictures of MuJoCo models: which renderer works here, at what quality, from any thread.

A profile sets the visual quality of the model while the renderer's context is made, which is when MuJoCo reads it, and
puts the model's own values back. "fast" drops what a software rasteriser spends its time on (shadow maps, reflections,
multisampling, finely sliced primitives, the sky box); "shadows" keeps small shadow maps, since a shadow shows the
distance to a surface; "fidelity" is the model as it is. Images of two profiles or backends differ, so both belong to
the protocol of whatever was trained or evaluated on them.
"""

import atexit
import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, get_args

import mujoco

from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.spec import Array
from burnish.envs.canvas import BACKEND_VARIABLE, Canvas, GlCanvas, NullCanvas, Picture, WarpCanvas

type Profile = Literal["fast", "shadows", "fidelity"]
type Backend = Literal["auto", "egl", "osmesa", "warp", "null"]

PROFILES: tuple[str, ...] = get_args(Profile.__value__)
BACKENDS: tuple[str, ...] = ("egl", "osmesa", "warp")
"""Those that draw, in the order in which "auto" tries them."""
PROBE_TIMEOUT_S = {"egl": 30.0, "osmesa": 30.0, "warp": 180.0}
"""Seconds until a probe counts as hung; the first one of "warp" on a machine compiles its kernels."""
INSTALL = {
    "egl": "apt-get install -y libegl1 libgl1 libgl1-mesa-dri",
    "osmesa": "apt-get install -y libosmesa6",
    "warp": "pip install 'burnish[warp]'",
}
"""What to run where a backend does not work."""

_making = threading.Lock()
_live: "weakref.WeakSet[Renderer]" = weakref.WeakSet()


class Renderer:
    """Draw one MuJoCo model; safe to share between threads and between environments of the same model.

    Each call takes a free context, or makes one, and returns it; so there are as many contexts as threads that draw at
    the same time, and none is left current afterwards.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        width: int,
        height: int,
        *,
        profile: Profile = "fast",
        backend: Backend = "auto",
        geom_groups: Sequence[int] = (0, 1, 2),
        show_sites: bool = False,
    ) -> None:
        """Choose the backend; contexts are made when the first picture is drawn.

        Args:
            model: What is drawn; its visual settings are the same after the call as before.
            width: Pixels W.
            height: Pixels H.
            profile: Visual quality.
            backend: "auto" for the first that works on this machine; "null" gives plain magenta pictures.
            geom_groups: Groups of geoms that are visible.
            show_sites: Whether sites of the groups 0 to 2 are visible; "warp" never shows them.

        Raises:
            ConfigError: If the profile or the backend does not exist, or the size is not positive.
            EnvError: If the backend does not work here; says how to mend it.
        """
        if profile not in PROFILES:
            raise ConfigError(f"There is no render profile '{profile}'.{suggest(profile, PROFILES)}")
        if width < 1 or height < 1:
            raise ConfigError(f"A picture needs at least one pixel each way; found width {width}, height {height}.")
        self.model = model
        self.width = width
        self.height = height
        self.profile: Profile = profile
        self.backend = choose_backend(backend)
        self._geom_groups = tuple(geom_groups)
        self._show_sites = show_sites
        self._lock = threading.Lock()
        self._free: list[Canvas] = []
        self._version = 0
        self._closed = False
        _live.add(self)

    @property
    def protocol(self) -> dict[str, Any]:
        """What must be equal for images of two renderers to be comparable, for ``EnvSpec.protocol``."""
        return {"profile": self.profile, "backend": self.backend, "width": self.width, "height": self.height}

    def render(self, data: mujoco.MjData, camera: int | str | mujoco.MjvCamera = -1) -> Array:
        """Return a picture of a state.

        Args:
            data: State after ``mj_forward`` (or ``mj_kinematics``, ``mj_comPos`` and ``mj_camlight``).
            camera: Name or index of a camera of the model, -1 or an ``MjvCamera`` for a free one.

        Returns:
            (H, W, 3) uint8, first row on top; owned by the caller.

        Raises:
            EnvError: If the camera does not exist, the renderer is closed, or the backend cannot draw the model.
        """
        view = self._camera(camera)
        with self._lock:
            if self._closed:
                raise EnvError("This Renderer is closed; make a new one.")
            version = self._version
            canvas = self._free.pop() if self._free else None
        if canvas is None:
            canvas = self._make()
        try:
            picture = canvas.draw(data, view)
        except BaseException:
            canvas.close()
            raise
        with self._lock:
            keep = not self._closed and version == self._version
            if keep:
                self._free.append(canvas)
        if not keep:
            canvas.close()
        return picture

    def refresh(self) -> None:
        """Upload meshes, height fields and textures of the model again, after they were changed in place."""
        with self._lock:
            old, self._free = self._free, []
            self._version += 1
        for canvas in old:
            canvas.close()

    def close(self) -> None:
        """Free all contexts; may be called twice, from any thread."""
        with self._lock:
            self._closed = True
        self.refresh()

    def _camera(self, camera: int | str | mujoco.MjvCamera) -> int | mujoco.MjvCamera:
        if isinstance(camera, mujoco.MjvCamera):
            return camera
        names = [self.model.camera(i).name for i in range(self.model.ncam)]
        if isinstance(camera, str):
            if camera not in names:
                raise EnvError(f"The model has no camera '{camera}'.{suggest(camera, names)}")
            return names.index(camera)
        if not -1 <= camera < self.model.ncam:
            raise EnvError(f"The model has no camera {camera}; it has {self.model.ncam}: {', '.join(names)}.")
        return int(camera)

    def _make(self) -> Canvas:
        if self.backend == "null":
            return NullCanvas(self.width, self.height)
        option = mujoco.MjvOption()
        option.geomgroup[:] = [group in self._geom_groups for group in range(mujoco.mjNGROUP)]
        option.sitegroup[:] = [self._show_sites and group < 3 for group in range(mujoco.mjNGROUP)]
        kind: type[GlCanvas | WarpCanvas] = WarpCanvas if self.backend == "warp" else GlCanvas
        try:
            with _making:
                canvas = kind(Picture(self.model, self.width, self.height, self.profile, self.backend, option))
            _close_at_exit()
            return canvas
        except EnvError:
            raise
        except Exception as error:  # GL bindings raise anything
            raise EnvError(
                f"Backend '{self.backend}' cannot draw this model: {type(error).__name__}: {error}. "
                f"Choose another with backend= or {BACKEND_VARIABLE}; `burnish doctor` lists what works here."
            ) from error


def choose_backend(backend: str = "auto") -> str:
    """Return a backend that works on this machine, probed in a subprocess once per process.

    Args:
        backend: "auto" for ``BURNISH_RENDER_BACKEND``, then ``MUJOCO_GL``, then the first that works; or a name.

    Raises:
        ConfigError: If there is no such backend.
        EnvError: If it does not work here; lists every backend, why it failed and what to install.
    """
    known = ("auto", *BACKENDS, "null")
    if backend == "auto":
        named = os.environ.get(BACKEND_VARIABLE, "")
        if named:
            if named not in known[1:]:
                raise ConfigError(f"{BACKEND_VARIABLE} is '{named}'.{suggest(named, known[1:])}")
            return named
        first = os.environ.get("MUJOCO_GL", "").lower()
        order = sorted(BACKENDS, key=lambda name: name != first)
        found = next((name for name in order if not probe(name)), "")
        if not found:
            raise EnvError(f"No renderer works on this machine.\n{explain()}")
        os.environ[BACKEND_VARIABLE] = found  # worker processes inherit it and need no probe
        if found in ("egl", "osmesa"):
            os.environ.setdefault("MUJOCO_GL", found)  # for other packages that draw in this process
        return found
    if backend not in known:
        raise ConfigError(f"There is no render backend '{backend}'.{suggest(backend, known)}")
    problem = "" if backend == "null" else probe(backend)
    if problem:
        raise EnvError(f"Render backend '{backend}' does not work here: {problem}. Try: {INSTALL[backend]}")
    return backend


def available_backends() -> tuple[str, ...]:
    """Return the backends that draw a right picture on this machine; probes all of them once per process."""
    return tuple(name for name in BACKENDS if not probe(name))


def explain() -> str:
    """Return one line per backend: that it works, or why not and what to run."""
    lines = []
    for name in BACKENDS:
        problem = probe(name)
        lines.append(f"{name}: {f'does not work: {problem}. Try: {INSTALL[name]}' if problem else 'works'}")
    return "\n".join(lines)


@cache
def probe(backend: str) -> str:
    """Draw a test picture in a subprocess and return "" or what went wrong; a crash or a hang stays there."""
    if backend == "warp" and importlib.util.find_spec("mujoco_warp") is None:
        return "the package 'mujoco_warp' is not installed"
    environment = {key: value for key, value in os.environ.items() if key != "PYOPENGL_PLATFORM"}
    environment["MUJOCO_GL"] = "disabled"  # the canvas imports its own context, so a bad value cannot stop the import
    command = [sys.executable, "-c", f"from burnish.envs.rendering import draw_probe; draw_probe({backend!r})"]
    limit = PROBE_TIMEOUT_S[backend]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"no picture within {limit:.0f} s"
    if done.returncode == 0:
        return ""
    words = done.stderr.strip().splitlines()
    return (words[-1] if words else f"the probe ended with code {done.returncode}").rstrip(".")


def draw_probe(backend: str) -> None:
    """Draw a red box with a backend in this process; ends the process with a message where the picture is wrong."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 2' dir='0 0 -1'/><geom type='box' size='.4 .4 .1' rgba='1 0 0 1'/>"
        "<camera name='top' pos='0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    os.environ[BACKEND_VARIABLE] = backend
    renderer = Renderer(model, 16, 16)
    try:
        centre = renderer.render(data, "top")[8, 8].tolist()
    except EnvError as error:
        sys.exit(f"{error.__cause__ or error}")
    finally:
        renderer.close()
    if centre[0] < 60 or centre[0] < 2 * max(centre[1:]):
        sys.exit(f"a red box came out as {centre}")


@cache
def _close_at_exit() -> None:
    """Close what is still open before the GL library shuts down, which it arranged when the first context was made."""

    def close_all() -> None:
        for renderer in list(_live):
            renderer.close()

    atexit.register(close_all)
