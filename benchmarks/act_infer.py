"""Inference of ACT, one observation at a time: CPU milliseconds per chunk.

Two 96x96 cameras, tokens of 256, chunks of 20, the same weights in all. burnish's `act` takes raw numpy observations
and normalises them; its export runs in onnxruntime. lerobot's `predict_action_chunk` gets tensors that are prepared
already, in inference mode. Answers are checked to be equal.
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import demonstrations as work
import harness
import numpy as np
from harness import Case, Round

CHUNKS = 10
"""In a round."""
MISSED = (
    "Why the goal is missed: most of the time is the backbone's convolutions, which the graph does not make fewer, and "
    "the peer is given its best case here (tensors prepared, inference mode, one thread)."
)


def prepare(folder: Path) -> None:
    """Write lerobot's directory and burnish's export of it, and compare the answers."""
    import torch
    from lerobot.policies.factory import make_pre_post_processors

    from burnish.deploy.exported import ExportedPolicy
    from burnish.policies.act import Config
    from burnish.rl.export import export

    policy = work.lerobot_act(use_vae=False).eval()
    policy.save_pretrained(folder / "lerobot")
    for processor in make_pre_post_processors(policy.config, dataset_stats={}):
        processor.save_pretrained(folder / "lerobot")
    ours = Config(path=str(folder / "lerobot")).build(work.SPEC, generator=np.random.default_rng(0))
    export(ours, folder / "export", samples=2)
    seen, generator = work.observations(np.random.default_rng(0), 1), np.random.default_rng(0)
    with torch.inference_mode():
        wanted = policy.predict_action_chunk(prepared(seen)).numpy()
    for answer in (ours, ExportedPolicy(folder / "export")):
        found = answer.act(seen, generator=generator, deterministic=True).action_chunk
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def prepared(seen: dict[str, Any]) -> dict[str, Any]:
    """Return an observation as lerobot's network takes it."""
    import torch

    pictures = {key: torch.from_numpy(seen[key]).permute(0, 3, 1, 2).float() / 255 for key in work.CAMERAS}
    return {**pictures, work.STATE: torch.from_numpy(seen[work.STATE])}


def burnish(folder: Path) -> Round:
    """Ask burnish's policy."""
    from burnish.policies.act import Config

    policy = Config(path=str(folder / "lerobot")).build(work.SPEC, generator=np.random.default_rng(0))
    return asking(policy)


def exported(folder: Path) -> Round:
    """Ask burnish's export."""
    from burnish.deploy.exported import ExportedPolicy

    return asking(ExportedPolicy(folder / "export"))


def asking(policy: Any) -> Round:
    """Ask a policy of burnish's contract."""
    generator = np.random.default_rng(0)
    seen = work.observations(generator, 1)

    def ask() -> float:
        for _ in range(CHUNKS):
            policy.act(seen, generator=generator, deterministic=True)
        return CHUNKS

    return ask


def lerobot(folder: Path) -> Round:
    """Ask lerobot's policy."""
    import torch
    from lerobot.policies.act.modeling_act import ACTPolicy

    policy = ACTPolicy.from_pretrained(folder / "lerobot").eval()
    batch = prepared(work.observations(np.random.default_rng(0), 1))

    def ask() -> float:
        with torch.inference_mode():
            for _ in range(CHUNKS):
                policy.predict_action_chunk(batch)
        return CHUNKS

    return ask


def main() -> None:
    """Measure and write."""
    chosen = harness.options("act_infer", __doc__)
    with tempfile.TemporaryDirectory(prefix="act_infer-") as name:
        folder = Path(name)
        prepare(folder)
        functions = {"torch": burnish, "onnxruntime": exported, "lerobot": lerobot}
        competitors = {key: functools.partial(function, folder) for key, function in functions.items()}
        timings = harness.measure(competitors, chosen.rounds)
    figures = {name: 1e3 * item.cpu for name, item in timings.items()}
    peers = {"lerobot": figures["lerobot"]}
    cases = {"torch": Case(figures["torch"], peers), "onnxruntime": Case(figures["onnxruntime"], peers, goal=3.0)}
    harness.write(
        "act_infer",
        cases,
        chosen,
        note="" if cases["onnxruntime"].ratio >= 3 else MISSED,
        unit="CPU ms per chunk",
        about=__doc__ or "",
        packages=("lerobot", "onnxruntime"),
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
