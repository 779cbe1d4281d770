"""Reinforcement-learning post-training of embodied policies.

The names below are what a script needs; each is imported when it is first used, so that ``import burnish`` is quick.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.cli.building import load_checkpoint
    from burnish.core.step import evaluation_starts
    from burnish.evaluation.compare import compare
    from burnish.evaluation.evaluate import evaluate
    from burnish.registry import register_envs

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "evaluate", "evaluation_starts", "load_checkpoint", "register_envs"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name == "register_envs":
        from burnish import registry

        return registry.register_envs
    if name == "load_checkpoint":
        from burnish.cli import building

        return building.load_checkpoint
    if name == "evaluation_starts":
        from burnish.core import step

        return step.evaluation_starts
    if name in ("evaluate", "compare"):
        from burnish.evaluation import compare as comparing
        from burnish.evaluation import evaluate as evaluating

        return evaluating.evaluate if name == "evaluate" else comparing.compare
    raise AttributeError(f"module 'burnish' has no attribute '{name}'; it offers {', '.join(__all__)}.")
