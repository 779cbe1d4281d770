"""What acts when something is deployed: a checkpoint, an exported folder, or a policy behind a server."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.core.errors import CheckpointError
from burnish.core.spec import EnvSpec, env_spec_from_json, fingerprint
from burnish.deploy.observations import ActingPolicy, Statistics
from burnish.deploy.remote import Config as RemoteConfig
from burnish.deploy.remote import RemotePolicy
from burnish.deploy.serving import Identity

if TYPE_CHECKING:
    from burnish.cli.building import Loaded

KEY_VARIABLE = "BURNISH_API_KEY"
"""Environment variable that holds the API key, so that it need not stand in a command line."""
RANGES = "observation_range"
"""Entry of a checkpoint's description: per vector, extremes and quantiles of its values in the demonstrations."""
RANGE_FIGURES = ("min", "max", "q01", "q99")
"""What of a vector's statistics is kept there."""


@dataclass(frozen=True)
class Acting:
    """A policy that can be deployed, and what is known of it."""

    name: str
    """Where it comes from, for messages."""
    policy: ActingPolicy
    """What answers."""
    description: Mapping[str, Any]
    """What the checkpoint says of itself; empty for a server."""
    control_dt: float = 0.0
    """Seconds between two of its actions; 0.0 when unknown."""
    replan_steps: int = 0
    """Actions of a chunk to execute; 0 for the whole chunk."""
    folder: Path | None = None
    """Where logs go by default; None for a server."""
    env_config: Any = None
    """Configuration of the env it was trained in; None where it is not known here."""
    env_id: str = ""
    """Environment it was trained in."""
    sampled: bool = True
    """Whether it can answer with samples."""

    @property
    def statistics(self) -> Statistics | None:
        """Figures of the training data, for range warnings."""
        ranges: Mapping[str, Any] = self.description.get(RANGES, {})
        return {key: item for key, item in ranges.items() if key in self.policy.spec.observation} or None

    def identity(self) -> Identity:
        """Return what clients of a server are told."""
        return Identity(
            control_dt=self.control_dt,
            env_id=self.env_id,
            fingerprint=fingerprint(self.description),
            replan_steps=self.replan_steps,
            statistics=self.statistics,
        )


def is_exported(path: Path) -> bool:
    """Return whether a folder is one that ``burnish export`` wrote."""
    return (path / "model.onnx").is_file()


def load_acting(path: Path, env_config: Any | None = None) -> Acting:
    """Read a checkpoint, or an exported folder, for which neither torch nor the checkpoint's env is needed.

    Args:
        path: The folder.
        env_config: Another environment than the one it was trained in.

    Raises:
        CheckpointError: If it is neither, is damaged, or does not fit the environment.
    """
    if is_exported(path):
        return _exported(path)
    from burnish.cli.building import load_checkpoint

    return of_checkpoint(load_checkpoint(path, env_config), path)


def of_checkpoint(loaded: "Loaded", path: Path | None = None) -> Acting:
    """Return a checkpoint that was read already."""
    from burnish.cli.building import env_spec_of

    spec = env_spec_of(loaded.env_config)
    return Acting(
        name=str(path or loaded.directory),
        policy=loaded.policy,
        description=loaded.description,
        control_dt=spec.control_dt,
        replan_steps=loaded.replan_steps,
        folder=path or loaded.directory,
        env_config=loaded.env_config,
        env_id=spec.id,
    )


@contextmanager
def remote_acting(url: str, config: RemoteConfig, robot: EnvSpec | None) -> Iterator[Acting]:
    """Connect to a policy server for as long as the context lasts."""
    with RemotePolicy(url, with_key(config), robot=robot) as policy:
        yield Acting(
            name=url,
            policy=policy,
            description={},
            control_dt=policy.control_dt,
            replan_steps=policy.replan_steps,
            env_id=str(policy.metadata.get("env", "")),
        )


def with_key(config: Any) -> Any:
    """Return a configuration with the API key of the environment variable, where it has none."""
    key = os.environ.get(KEY_VARIABLE, "")
    return config if config.api_key or not key else dataclasses.replace(config, api_key=key)


def _exported(path: Path) -> Acting:
    from burnish.deploy.exported import ExportedPolicy

    policy = ExportedPolicy(path)
    try:
        spec = env_spec_from_json(json.loads(json.dumps(policy.description["env_spec"])))
        replan = int(policy.description["replan_steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"'{path / 'spec.json'}' does not say env_spec and replan_steps ({error!r}); export it with burnish export."
        ) from error
    return Acting(
        name=str(path),
        policy=policy,
        description=policy.description,
        control_dt=spec.control_dt,
        replan_steps=replan,
        folder=path,
        env_id=spec.id,
        sampled=False,
    )
