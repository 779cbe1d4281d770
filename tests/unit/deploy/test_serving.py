import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from websockets.sync.client import connect

from burnish.core.errors import ConfigError
from burnish.deploy import gr00t, lerobot_server, openpi
from burnish.deploy.codec import pack, unpack
from burnish.deploy.serving import (
    MAX_REASON,
    Identity,
    address,
    authorised,
    is_loopback,
    one_line,
    running,
    same_key,
    tls_context,
)
from tests.unit.deploy.affine import AffinePolicy, make_observation
from tests.unit.deploy.test_lerobot_server import Robot, observation

IDENTITY = Identity(control_dt=0.05)
PROTOCOLS = [openpi, lerobot_server, gr00t]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 with its private key, made by openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "certificate.pem"), str(folder / "key.pem")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1 -addext"
    command = ["openssl", *options.split(), "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(command, check=True, capture_output=True)
    return paths


def test_openpi_over_tls(certificate: tuple[str, str]) -> None:
    config = openpi.Config(port=0, certificate=certificate[0], private_key=certificate[1])
    with running(openpi.Server(AffinePolicy(), IDENTITY, config)) as server:
        trusted = ssl.create_default_context(cafile=certificate[0])
        with connect(server.url, ssl=trusted, proxy=None) as connection:
            connection.recv()
            connection.send(pack(make_observation()))
            answer = connection.recv()
            assert isinstance(answer, bytes)
            assert unpack(answer)["actions"].shape == (4, 2)
        with pytest.raises(ssl.SSLCertVerificationError), connect(server.url, proxy=None):
            pass


def test_lerobot_over_tls(certificate: tuple[str, str]) -> None:
    grpc = pytest.importorskip("grpc")
    config = lerobot_server.Config(port=0, certificate=certificate[0], private_key=certificate[1])
    with running(lerobot_server.Server(AffinePolicy(), IDENTITY, config)) as server:
        assert server.url.startswith("grpcs://")
        credentials = grpc.ssl_channel_credentials(Path(certificate[0]).read_bytes())
        with Robot(server, channel=grpc.secure_channel(server.url.partition("//")[2], credentials)) as robot:
            robot.begin().observe(observation(0))
            assert robot.act()[0] == [0, 1, 2]


def test_tls_files_that_do_not_belong_together_are_refused(certificate: tuple[str, str], tmp_path: Path) -> None:
    assert tls_context("", "") is None
    (tmp_path / "other.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match="TLS files"):
        tls_context(certificate[0], str(tmp_path / "other.pem"))


@pytest.mark.parametrize("module", PROTOCOLS)
def test_every_protocol_has_the_same_rules_of_admission(module: object) -> None:
    config = module.Config  # type: ignore[attr-defined]
    for host in ("0.0.0.0", "", "::", "robot.local", "10.0.0.1", "127.0.0.1.example.org"):
        with pytest.raises(ConfigError, match="without a key"):
            config(host=host)
        config(host=host, api_key="key")
        config(host=host, insecure=True)
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        config(host=host)
    for key in (" key", "key\n", "schlüssel"):
        with pytest.raises(ConfigError, match="ASCII"):
            config(api_key=key)


@pytest.mark.parametrize("module", PROTOCOLS)
def test_every_protocol_is_served_in_the_same_way(module: object) -> None:
    server = module.Server(AffinePolicy(), IDENTITY, module.Config(port=0, warm_up=1))  # type: ignore[attr-defined]
    assert module.serve_forever is openpi.serve_forever  # type: ignore[attr-defined]
    assert not server.ready
    with running(server) as entered:
        assert entered is server
        assert server.ready
        assert server.url.endswith(f"127.0.0.1:{server.port}")
        assert server.metadata()["observation"].keys() == AffinePolicy().spec.observation.keys()
    assert not server.ready


def test_keys_are_compared_whole() -> None:
    assert same_key("secret", "secret")
    assert authorised("Api-Key secret", "secret")
    for header in (
        "secret",
        "Api-Key",
        "Api-Key secre",
        "Api-Key secret ",
        "api-key secret",
        "Bearer secret",
        b"",
        None,
    ):
        assert not authorised(header, "secret")
    for sent in (b"secret", None, 3, ["secret"], "secret\0", "sécret"):
        assert not same_key(sent, "secret")


def test_addresses() -> None:
    assert address("ws", "0.0.0.0", 80) == "ws://127.0.0.1:80"
    assert address("tcp", "::1", 80) == "tcp://[::1]:80"
    assert is_loopback("::1")
    assert not is_loopback("::")


def test_messages_are_one_printable_line() -> None:
    assert one_line("a\nWARNING b\x1b[31m\u2028c") == "a WARNING b [31m c"
    assert len(one_line("x" * 9999)) == MAX_REASON
