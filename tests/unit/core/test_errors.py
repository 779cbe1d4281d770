import pytest

from burnish.core import errors
from burnish.core.errors import MissingExtraError, require, suggest


def test_suggest_names_the_nearest_and_lists_all() -> None:
    assert suggest("clped", ["value", "clipped"]) == " Did you mean 'clipped'? Available: clipped, value."
    assert suggest("zzz", ["b", "a"]) == " Available: a, b."
    assert suggest("x", []) == " Available: (none)."


def test_require_prints_the_install_line() -> None:
    require("json", "lerobot", "reading")
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_package", "splat", "rendering scenes")
    assert str(caught.value) == (
        "The package 'no_such_package' is needed for rendering scenes, and is not installed. "
        "Install it with: pip install 'burnish[splat]'"
    )


def test_every_error_is_one_that_the_command_line_prints_without_a_traceback() -> None:
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert len(kinds) >= 10
    assert all(issubclass(kind, errors.BurnishError) and kind.__doc__ for kind in kinds)
