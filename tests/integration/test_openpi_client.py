"""The unmodified ``openpi-client`` from the package index, with its own numpy, against our server."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from burnish.deploy.openpi import Config, Identity, Server, running
from tests.unit.deploy.affine import STATE, AffinePolicy

PACKAGES = ("openpi-client==0.1.2", "typing_extensions", "numpy<2")
SCRIPT = Path(__file__).with_name("openpi_client_script.py")
KEY = "integration"


@pytest.fixture(scope="module")
def side_python() -> str:
    """Interpreter of an environment with openpi-client; made once per machine, and kept."""
    folder = Path(tempfile.gettempdir()) / f"burnish-openpi-client-0.1.2-{os.getuid()}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        problem = _install(folder, python)
        if problem:
            if os.environ.get("BURNISH_REQUIRE_OPENPI") == "1":
                pytest.fail(f"openpi-client could not be installed: {problem}")
            pytest.skip(f"openpi-client could not be installed (package index out of reach?): {problem}")
        (folder / "complete").touch()
    return str(python)


def _install(folder: Path, python: Path) -> str:
    uv = shutil.which("uv")
    steps = (
        [[uv, "venv", "--clear", "--python", "3.12", str(folder)], [uv, "pip", "install", "--python", str(python)]]
        if uv
        else [[sys.executable, "-m", "venv", "--clear", str(folder)], [str(python), "-m", "pip", "install"]]
    )
    for step in (steps[0], [*steps[1], *PACKAGES]):
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            return done.stderr.strip()[-500:] or f"{step[0]} ended with {done.returncode}"
    return ""


@pytest.fixture(scope="module")
def result(side_python: str) -> dict[str, Any]:
    """What the client saw; see ``openpi_client_script.py``."""
    config = Config(port=0, api_key=KEY)
    identity = Identity(control_dt=0.05, env_id="toy", fingerprint="abc")
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k != "PYTHONPATH"}
    with running(Server(AffinePolicy(slope=1.0), identity, config)) as server:
        done = subprocess.run(
            [side_python, str(SCRIPT), str(server.port), KEY],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_the_client_runs_with_numpy_1(result: dict[str, Any]) -> None:
    assert result["numpy"].startswith("1.")


def test_metadata_arrives(result: dict[str, Any]) -> None:
    assert result["metadata"]["observation"][STATE]["shape"] == [3]
    assert result["metadata"]["fingerprint"] == "abc"


def test_fifty_inferences_answer_their_own_observation(result: dict[str, Any]) -> None:
    assert result["first"] == pytest.approx([i / 100 for i in range(50)])
    assert (result["shape"], result["dtype"]) == ([4, 2], "float32")
    assert result["timing"] == ["infer_ms", "prev_total_ms"]


def test_a_wrong_key_is_401(result: dict[str, Any]) -> None:
    assert "401" in result["wrong_key"]


def test_two_clients_do_not_mix(result: dict[str, Any]) -> None:
    assert result["two_clients"] == pytest.approx([0.1, 0.2, 0.3])


def test_an_error_is_a_runtime_error_that_names_the_keys(result: dict[str, Any]) -> None:
    assert result["refused"].startswith("Error in inference server:")
    assert "Expected: observation.state float32[3]" in result["refused"]
    assert "Traceback" not in result["refused"]


def test_it_reconnects_after_an_error(result: dict[str, Any]) -> None:
    assert result["reconnected"] == pytest.approx(0.4)


def test_the_chunk_broker_plays_a_chunk_and_asks_again(result: dict[str, Any]) -> None:
    assert result["broker"] == pytest.approx([0.0, 1.0, 2.0, 0.3])
