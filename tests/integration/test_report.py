"""The report, opened in a real browser without a network."""

import os
import shutil
import subprocess

import av
import numpy as np
import pytest

from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.report import Films, write_report
from burnish.evaluation.videos import record_videos
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=4000",
)


@pytest.fixture(scope="module")
def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("BURNISH_REQUIRE_CHROMIUM") == "1":
            pytest.fail("BURNISH_REQUIRE_CHROMIUM=1 is set, but there is no chromium on the PATH.")
        pytest.skip("needs chromium on the PATH; set BURNISH_REQUIRE_CHROMIUM=1 to make that an error")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    sides = []
    for name, force in (("before", 22.0), ("after", 40.0)):
        policy, env = PressPolicy(force), press_env(4)
        result = evaluate(policy, env, starts(40), replan_steps=5)
        sides.append((result, record_videos(policy, env, result, folder / name)))
    (before, before_videos), (after, after_videos) = sides
    return write_report(
        folder / "report.html", [after], before=[before], films=Films(before_videos, after_videos), title="In a browser"
    )


def browse(chromium, page, folder, *options):
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_the_page_is_complete_in_a_browser(chromium, report, tmp_path):
    done = browse(chromium, report, tmp_path, "--dump-dom", "--enable-logging=stderr", "--v=0")
    assert "<h1>In a browser</h1>" in done.stdout
    assert done.stdout.count("<svg") == 2
    assert done.stdout.count("<video") >= 3
    assert done.stdout.rstrip().endswith("</html>")
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert complaints == []


def test_the_videos_play(chromium, report, tmp_path):
    """A probe page with a script embeds the same videos, and writes down their sizes once they have loaded."""
    source = report.read_text(encoding="utf-8")
    sources = [part.split('"', 1)[0] for part in source.split('src="')[1:] if part.startswith("data:video")]
    assert sources
    probe = tmp_path / "probe.html"
    probe.write_text(
        "<ul></ul><script>for (const source of " + repr(sources) + ") {"
        "const video = document.createElement('video'), row = document.createElement('li');"
        "document.querySelector('ul').append(row); row.textContent = 'waiting';"
        "video.onloadeddata = () => "
        "row.textContent = `${video.videoWidth}x${video.videoHeight} ${video.duration > 0.9}`;"
        "video.onerror = () => row.textContent = video.error.message; video.preload = 'auto'; video.src = source; }"
        "</script>",
        encoding="utf-8",
    )
    page = browse(chromium, probe, tmp_path, "--dump-dom").stdout
    assert page.count("<li>48x34 true</li>") == len(sources), page[:2000]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn(chromium, report, tmp_path, scheme):
    picture = tmp_path / "page.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(chromium, report, tmp_path, f"--screenshot={picture}", "--window-size=1100,1600", *dark)
    with av.open(str(picture)) as container:
        pixels = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert pixels.shape == (1600, 1100, 3)
    assert (pixels[2, 2] < 40).all() if scheme == "dark" else (pixels[2, 2] > 230).all()
    drawn = (np.ptp(pixels.reshape(1600, -1), axis=1) > 60).mean()
    assert drawn > 0.4
