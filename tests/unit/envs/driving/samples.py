"""Small scenes for tests: hand-made recordings and XML of our own."""

import os
from pathlib import Path

import numpy as np
import pytest

from burnish.envs.driving.recording import LaneRecord, Recording, TrackRecord, build_scenes

VARIABLE = "BURNISH_COMMONROAD"
"""Environment variable with the folder of recorded CommonRoad scenarios."""


def commonroad_folder() -> Path:
    """Return the folder of recorded scenarios, or skip."""
    given = os.environ.get(VARIABLE)
    folder = Path(given) if given else Path(__file__).parents[5] / "shared" / "data" / "commonroad"
    if not sorted(folder.glob("*.xml")):
        pytest.skip(f"no recorded CommonRoad scenarios in {folder}; set {VARIABLE} to a folder that has some")
    return folder


def lane(number, y, x=(0.0, 200.0), width=4.0, **more):
    """A straight lane along x."""
    ends = np.linspace(*x, 11)
    left, right = (np.stack((ends, np.full(11, y + side * width / 2)), -1) for side in (1, -1))
    return LaneRecord(number, left, right, **more)


def track(number, x, y, speed, steps=50, yaw=0.0, size=(4.0, 2.0), kind="vehicle", first=0):
    """A car that drives straight on."""
    times = 0.1 * np.arange(first, first + steps)
    along = speed * (times - times[0])
    states = np.stack(
        (x + along * np.cos(yaw), y + along * np.sin(yaw), np.full(steps, yaw), np.full(steps, speed)), -1
    )
    return TrackRecord(number, kind, *size, times, states, np.ones(steps, bool))


def straight_road(*tracks, name="road", **more):
    """Two lanes along x, y = 0 and y = 4, and tracks; the first is the ego."""
    lanes = [lane(0, 0.0, left_lane=1), lane(1, 4.0, right_lane=0)]
    tracks = tracks or (track(1, 10.0, 0.0, 10.0),)
    recording = Recording(name, "test", lanes, tracks, ego_id=tracks[0].id, **more)
    return next(build_scenes(recording, [tracks[0].id]))


def bound(tag, y, xs=(0, 50, 100)):
    points = "".join(f"<point><x>{x}</x><y>{y}</y></point>" for x in xs)
    return f"<{tag}>{points}</{tag}>"


def lanelet(number, y, inside="", width=4.0):
    bounds = bound("leftBound", y + width / 2) + bound("rightBound", y - width / 2)
    return f'<lanelet id="{number}">{bounds}{inside}</lanelet>'


def state(tag, step, x, y, speed=10.0, yaw=0.0):
    return (
        f"<{tag}><position><point><x>{x}</x><y>{y}</y></point></position><orientation><exact>{yaw}</exact></orientation>"
        f"<time><exact>{step}</exact></time><velocity><exact>{speed}</exact></velocity></{tag}>"
    )


def obstacle(number, x, y, speed=10.0, steps=30, dt=0.1, tag="dynamicObstacle", inside=""):
    states = "".join(state("state", k, x + k * dt * speed, y, speed) for k in range(1, steps))
    first = state("initialState", 0, x, y, speed)
    return (
        f'<{tag} id="{number}">{inside}<type>car</type><shape><rectangle><length>4.5</length>'
        f"<width>1.9</width></rectangle></shape>{first}<trajectory>{states}</trajectory></{tag}>"
    )


SIGN = (
    '<trafficSign id="70"><trafficSignElement><trafficSignID>274</trafficSignID>'
    "<additionalValue>13.9</additionalValue></trafficSignElement></trafficSign>"
)
LIGHT = (
    '<trafficLight id="80"><cycle><cycleElement><duration>10</duration><color>green</color></cycleElement>'
    "<cycleElement><duration>5</duration><color>yellow</color></cycleElement>"
    "<cycleElement><duration>15</duration><color>red</color></cycleElement><timeOffset>4</timeOffset></cycle></trafficLight>"
)
LANES = lanelet(
    1, 0, '<adjacentLeft ref="2" drivingDir="same"/><trafficSignRef ref="70"/><trafficLightRef ref="80"/>'
) + lanelet(2, 4, '<adjacentRight ref="1" drivingDir="same"/>')


def document(body, version="2020a", dt="0.1"):
    return (
        f'<?xml version="1.0"?><commonRoad commonRoadVersion="{version}" benchmarkID="TST_Road-1_1_T-1" '
        f'source="made for tests" timeStepSize="{dt}">{body}</commonRoad>'
    )


NEW = document(LANES + SIGN + LIGHT + obstacle(101, 5, 0) + obstacle(102, 40, 4, speed=8.0))
OLD = document(
    lanelet(1, 0, "<speedLimit>13.9</speedLimit>")
    + obstacle(101, 5, 0, tag="obstacle", inside="<role>dynamic</role>")
    + obstacle(103, 80, 0, speed=0.0, steps=1, tag="obstacle", inside="<role>static</role>"),
    version="2018b",
)
