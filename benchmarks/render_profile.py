"""CPU time per offscreen frame: burnish's render profiles against mujoco.Renderer and Gymnasium's rgb_array.

Run with: python benchmarks/render_profile.py [--rounds 7] [--frames 20]
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("LP_NUM_THREADS", "0")  # the same for everybody; more threads only cost
os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import mujoco
import numpy as np

from burnish.envs.rendering import Renderer

COMMAND = "python benchmarks/render_profile.py"
GOALS = {"fast": 40.0, "shadows": 8.0}
SIZES = (64, 96)
ARM = """
<mujoco>
  <visual><global offwidth="640" offheight="480"/><quality shadowsize="2048"/></visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".3 .5 .7" rgb2="0 0 0" width="512" height="3072"/>
    <texture name="tiles" type="2d" builtin="checker" rgb1=".2 .3 .4" rgb2=".1 .2 .3" width="300" height="300"/>
    <material name="floor" texture="tiles" texrepeat="5 5" reflectance=".2"/>
    <material name="link" rgba=".9 .9 .9 1"/>
  </asset>
  <worldbody>
    <light pos="1 0 3" dir="-.3 0 -1"/>
    <light pos="-1 1 3" dir=".3 -.3 -1"/>
    <camera name="view" pos="1.2 -1.2 1.2" xyaxes=".7 .7 0 -.4 .4 .8"/>
    <geom type="plane" size="2 2 .1" material="floor"/>
    <geom type="box" pos=".5 .1 .05" size=".2 .3 .05" rgba=".6 .5 .4 1"/>
    <geom type="cylinder" pos=".5 .1 .12" size=".03 .02" rgba=".2 .6 .3 1"/>
    <body pos="0 0 .1">
      <joint axis="0 0 1"/><geom type="cylinder" size=".1 .1" material="link"/>
      <body pos="0 0 .15">
        <joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 .3" size=".06" material="link"/>
        <body pos="0 0 .3">
          <joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 .05" size=".05" material="link"/>
          <body pos=".3 0 .05">
            <joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .15 0 -.15" size=".04" material="link"/>
            <geom type="sphere" pos=".15 0 -.15" size=".05" rgba=".1 .1 .1 1"/>
            <geom type="cylinder" fromto=".15 0 -.15 .15 0 -.3" size=".01" rgba=".8 .2 .2 1"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

type Draw = Callable[[], object]


def arm_contenders(size: int) -> dict[str, Draw]:
    """Return what draws the arm: MuJoCo's own renderer as it comes, and ours."""
    model = mujoco.MjModel.from_xml_string(ARM)
    data = mujoco.MjData(model)
    data.qpos[:] = (0.3, 0.4, 0.3, 0.2)
    mujoco.mj_forward(model, data)
    return {"mujoco.Renderer": peer_renderer(model, data, size, "view"), **profiles(model, data, size, "view")}


def cheetah_contenders(size: int) -> dict[str, Draw]:
    """Return what draws HalfCheetah: Gymnasium's rgb_array, MuJoCo's own renderer, and ours."""
    env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=size, height=size)
    env.reset(seed=0)
    model, data = env.unwrapped.model, env.unwrapped.data
    return {"gymnasium rgb_array": env.render, **profiles(model, data, size, 0)}


def peer_renderer(model: mujoco.MjModel, data: mujoco.MjData, size: int, camera: str) -> Draw:
    """Return mujoco.Renderer as its documentation uses it."""
    renderer = mujoco.Renderer(model, size, size)

    def draw() -> object:
        renderer.update_scene(data, camera=camera)
        return renderer.render()

    return draw


def profiles(model: mujoco.MjModel, data: mujoco.MjData, size: int, camera: str | int) -> dict[str, Draw]:
    """Return the two cheap profiles of burnish."""

    def drawing(profile: str) -> Draw:
        renderer = Renderer(model, size, size, profile=profile, backend="egl")
        return lambda: renderer.render(data, camera)

    return {profile: drawing(profile) for profile in GOALS}


def measure(contenders: dict[str, Draw], rounds: int, frames: int) -> dict[str, float]:
    """Return the median over interleaved rounds of CPU milliseconds per frame (all threads)."""
    for draw in contenders.values():
        picture = np.asarray(draw())
        if picture.std() < 5:
            raise RuntimeError("a contender draws an empty picture")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, draw in contenders.items():
            begin = time.process_time()
            for _ in range(frames):
                draw()
            seconds[name].append((time.process_time() - begin) / frames)
    return {name: round(1e3 * statistics.median(values), 3) for name, values in seconds.items()}


def main() -> None:
    """Measure, print the ratios, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "render_profile.json")
    arguments = parser.parse_args()
    ours: dict[str, float] = {}
    peers: dict[str, float] = {}
    ratio: dict[str, float] = {}
    for scene, build in (("arm", arm_contenders), ("half_cheetah", cheetah_contenders)):
        for size in SIZES:
            figures = measure(build(size), arguments.rounds, arguments.frames)
            (peer,) = (name for name in figures if name not in GOALS)
            peers[f"{scene}.{size}.{peer}"] = figures[peer]
            for profile, goal in GOALS.items():
                key = f"{scene}.{size}.{profile}"
                ours[key] = figures[profile]
                ratio[key] = round(figures[peer] / figures[profile], 1)
                print(f"{key}: {figures[profile]:.2f} ms, {peer} {figures[peer]:.2f} ms, {ratio[key]}x (goal {goal}x)")
    machine = {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
    }
    result = {
        "command": COMMAND,
        "machine": machine,
        "ours": ours,
        "peers": peers,
        "ratio": ratio,
        "goal": GOALS,
        "unit": "CPU ms per frame",
    }
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def processor() -> str:
    """Return the name of the CPU where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
