import subprocess
import sys
from pathlib import Path

import pytest

import burnish
from burnish import registry
from burnish.core.errors import ConfigError, UnknownNameError


def test_listing_imports_nothing() -> None:
    code = (
        "import sys\n"
        "from burnish import registry\n"
        "before = set(sys.modules)\n"
        "assert all(registry.names(kind) or True for kind in registry.FOLDERS)\n"
        "assert 'point_mass' in registry.names('env')\n"
        "added = {name for name in set(sys.modules) - before if name.startswith(('burnish', 'torch', 'mujoco'))}\n"
        "assert not added, added\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_are_paths_below_the_folder() -> None:
    names = registry.names("env")
    assert "contact/contour" in names
    assert "single" not in names  # has no Config
    assert registry.modules("env")["contact/contour"] == "burnish.envs.contact.contour"
    assert names == sorted(names)


def test_a_module_path_stands_for_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").touch()
    (tmp_path / "their_package" / "task.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Config:\n    size: int = 3\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = registry.load("env", "their_package.task")(size=5)
    assert registry.name_of("env", config) == "their_package.task"
    assert registry.from_json("env", registry.to_json("env", config)) == config


def test_components_go_through_json() -> None:
    config = registry.load("env", "point_mass")(goal_radius=0.2)
    plain = registry.to_json("env", config)
    assert plain["id"] == "point_mass"
    assert registry.from_json("env", plain) == config
    plain["config"]["goal_radios"] = 1.0
    with pytest.raises(ConfigError, match=r"env 'point_mass': unknown field 'goal_radios'\. Did you mean 'goal_radi"):
        registry.from_json("env", plain)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("envs", "point_mass", "There is no kind of component 'envs'. Did you mean 'env'"),
        ("env", "point_mas", "There is no env 'point_mas'. Did you mean 'point_mass'"),
        ("env", "no_such.module", "Cannot use module 'no_such.module' as env: No module named 'no_such'"),
        ("policy", "json.decoder", "Cannot use module 'json.decoder' as policy: .* has no attribute 'Config'"),
    ],
)
def test_unknown_names(kind: str, name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        registry.load(kind, name)


def test_public_names_are_there() -> None:
    for name in burnish.__all__:
        assert getattr(burnish, name)
    with pytest.raises(AttributeError, match="it offers"):
        _ = burnish.trainn  # type: ignore[attr-defined]
