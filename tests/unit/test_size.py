"""Size and shape of the code base: what CONTRIBUTING promises, as tests."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnish

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "burnish"
CODE = [file for folder in ("burnish", "tests", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
MAX_FILE_LINES = 600
"""The goal is 400."""
MAX_FUNCTION_LINES = 100
"""The goal is 60."""
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
PUBLIC_NAMES = {"compare", "evaluate", "evaluation_starts", "load_checkpoint", "register_envs"}
"""What ``burnish`` itself offers, besides ``__version__``; at most 20."""


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_files_are_short() -> None:
    # Tables of cases may be long; a component may not.
    files = [file for file in CODE if file.parts[len(ROOT.parts)] != "tests"]
    lengths = {relative(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = {
        f"{relative(file)}:{node.lineno} {node.name}": length
        for file in CODE
        for node in functions(file)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    assert [relative(file) for file in CODE if {*file.parts[len(ROOT.parts) : -1], file.stem} & BANNED_NAMES] == []


def test_folders_are_at_most_three_deep() -> None:
    assert [relative(file) for file in PACKAGE.rglob("*.py") if len(file.relative_to(PACKAGE).parts) > 3] == []


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{relative(file)}:{number}"
        for file in CODE
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_every_package_says_what_it_is() -> None:
    short = [
        relative(file)
        for file in PACKAGE.rglob("__init__.py")
        if len((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split()) < 3
    ]
    assert short == []


def test_public_names_are_pinned() -> None:
    public = set(getattr(burnish, "__all__", ())) - {"__version__"}
    assert public == PUBLIC_NAMES
    assert len(public) <= 20


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_the_command_line_starts_without_torch(arguments: list[str]) -> None:
    code = (
        "import contextlib, io, sys\n"
        f"sys.argv = ['burnish', *{arguments!r}]\n"
        "from burnish.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "heavy = {'torch', 'mujoco', 'lerobot', 'gymnasium', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["burnish.core.check", "burnish.core.transforms", "burnish.core.frames"])
def test_what_runs_on_the_robot_needs_numpy_only(module: str) -> None:
    code = (
        f"import sys\nimport {module}\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "heavy = {'torch', 'mujoco', 'lerobot', 'gymnasium', 'scipy', 'safetensors', 'pyarrow'} & roots\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
