"""Error types, and the one way to ask for an optional package.

Every message says what was wrong, where, what was found, what exists, and what to do.
"""

import difflib
import importlib.util
from collections.abc import Iterable


class BurnishError(Exception):
    """Base of all errors that a user can cause and mend; the command line prints it without a traceback."""


class ConfigError(BurnishError):
    """A configuration value is wrong, or two values contradict each other."""


class SpecError(BurnishError):
    """Two array descriptions (shape, dtype, unit, frame) do not fit."""


class UnknownNameError(BurnishError):
    """A name that is not registered was asked for."""


class CheckpointError(BurnishError):
    """A checkpoint folder is missing a part, is damaged, or does not fit what asks for it."""


class DatasetError(BurnishError):
    """A dataset or an episode file is damaged or does not fit."""


class ProtocolError(BurnishError):
    """A remote peer sent something that the protocol does not allow."""


class EnvError(BurnishError):
    """An environment broke its contract, or could not be kept alive."""


class CheckError(BurnishError):
    """A contract check or a run-time check failed."""


class MissingExtraError(BurnishError):
    """A package of an optional extra is not installed."""


def require(package: str, extra: str, purpose: str) -> None:
    """Refuse to go on when an optional package is missing, with the exact install line.

    Args:
        package: Importable top-level name, for example ``"lerobot"``.
        extra: Name of the burnish extra that installs it.
        purpose: What needs it, as the end of "... is needed for".

    Raises:
        MissingExtraError: If the package cannot be found.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"The package '{package}' is needed for {purpose}, and is not installed. "
            f"Install it with: pip install 'burnish[{extra}]'"
        )


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the sentence that lists what exists, with the nearest name first.

    Args:
        name: What was asked for.
        known: What exists.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{hint} Available: {', '.join(names) if names else '(none)'}."
