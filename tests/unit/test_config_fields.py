"""Every field of a configuration is read by some code: an option that changes nothing is a lie to whoever sets it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "burnish"


def fields(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield (class, field) of every frozen dataclass whose fields all have defaults: those that options fill in."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) and any("frozen=True" in ast.unparse(item) for item in node.decorator_list):
            own = [
                item
                for item in node.body
                if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation)
            ]
            if all(item.value is not None for item in own):
                yield from ((node.name, ast.unparse(item.target)) for item in own)


def reads(nodes: list[ast.AST]) -> set[str]:
    """Return attributes that are read, and names in tables of names; refusing a bad value is no use of it."""
    checks = [node for node in nodes if getattr(node, "name", "") == "__post_init__"]
    ignored = {id(part) for check in checks for part in ast.walk(check)}
    nodes = [node for node in nodes if id(node) not in ignored]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    tables = (
        child for node in nodes for child in ast.iter_child_nodes(node) if isinstance(node, (ast.Tuple, ast.Dict))
    )
    return attributes | {
        item.value for item in tables if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


def unread(sources: Mapping[str, str]) -> list[str]:
    """Return fields that no module of their own top-level package reads; sources maps paths below burnish to text."""
    trees = {path: list(ast.walk(ast.parse(text))) for path, text in sources.items()}
    found: dict[str, set[str]] = {}
    for path, nodes in trees.items():
        found.setdefault(path.split("/")[0], set()).update(reads(nodes))
    return [
        f"{path}: {name}.{field}"
        for path, nodes in trees.items()
        for name, field in fields(nodes)
        if field not in found[path.split("/")[0]]
    ]


def test_every_field_of_a_configuration_is_read() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert unread({file.relative_to(PACKAGE).as_posix(): file.read_text(encoding="utf-8") for file in files}) == []


def test_a_field_that_is_only_checked_or_set_is_found() -> None:
    config = """
@dataclass(frozen=True)
class Config:
    used: int = 1
    listed: int = 1
    checked: int = 1
    elsewhere: int = 1

    def __post_init__(self):
        assert self.checked > 0
"""
    sources = {
        "rl/part.py": config + "\nNAMES = ('listed',)\n\ndef use(config):\n    return config.used\n",
        "cli/other.py": "def use(config):\n    config.checked = config.elsewhere\n",
    }
    assert unread(sources) == ["rl/part.py: Config.checked", "rl/part.py: Config.elsewhere"]
