"""Loading demonstrations: batches of 8 samples with two 96x96 cameras and chunks of 20 actions per CPU second.

burnish decodes a LeRobotDataset once into a memory map and gathers from it; lerobot decodes at every access, from PNG
or from video. Pictures are checked to be equal (PNG) or close (video, where decoders differ a little).
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import demonstrations as work
import harness
import numpy as np
from harness import Case, Round

OURS, THEIRS = 200, 3
"""Batches per round."""


def burnish(directory: Path, cache: Path) -> Round:
    """Gather from the decoded dataset; pictures become float tensors in [0, 1], as the peer's do."""
    import torch

    from burnish.data.dataset import read_lerobot

    dataset = read_lerobot(directory, cache)
    generator = np.random.default_rng(0)

    def load() -> float:
        for _ in range(OURS):
            observation, chunk, executed = dataset.chunks(generator.integers(len(dataset), size=work.BATCH), work.CHUNK)
            tensors = [torch.from_numpy(observation[key]).float().div_(255) for key in work.CAMERAS]
            check_batch(tensors, chunk, executed)
        return OURS

    return load


def check_batch(pictures: Any, chunk: Any, executed: Any) -> None:
    """Refuse a batch that is not whole."""
    if not (len(pictures) == len(work.CAMERAS) and len(chunk) == len(executed) == work.BATCH):
        raise SystemExit("A batch is not whole.")


def lerobot(directory: Path, backend: str | None) -> Round:
    """Load with lerobot's dataset and loader."""
    import torch

    batches = work.lerobot_loader(work.lerobot_dataset(directory, backend))

    def load() -> float:
        for _ in range(THEIRS):
            batch = next(batches)
            for key in work.CAMERAS:
                if batch[key].dtype == torch.uint8:
                    batch[key] = batch[key].to(torch.float32) / 255.0
        return THEIRS

    return load


def torchcodec_error() -> str:
    """Return why torchcodec does not work here, "" where it does."""
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""


def check(directory: Path, cache: Path, tolerance: float) -> None:
    """Refuse to compare datasets that do not give the same samples."""
    from burnish.data.dataset import read_lerobot

    ours, theirs = read_lerobot(directory, cache), work.lerobot_dataset(directory, "pyav")
    for index in (0, 57, 200):
        observation, chunk, executed = ours.chunks(np.array([index]), work.CHUNK)
        sample: Any = theirs[index]
        np.testing.assert_array_equal(chunk[0], sample["action"].numpy())
        assert executed[0] == (~sample["action_is_pad"]).sum()
        for key in work.CAMERAS:
            picture = sample[key].permute(1, 2, 0).numpy().astype(np.float32)
            picture = picture if picture.max() > 1 else 255 * picture
            error = np.abs(observation[key][0].astype(np.float32) - picture).mean()
            if error > tolerance:
                raise SystemExit(f"Sample {index}: {key} differs by {error:.2f} of 255 on average.")


def main() -> None:
    """Measure and write."""
    chosen = harness.options("dataset_load", __doc__)
    with tempfile.TemporaryDirectory(prefix="dataset_load-") as folder:
        png, video, cache = Path(folder) / "png", Path(folder) / "video", Path(folder) / "cache"
        work.record(png, videos=False)
        work.record(video, videos=True)
        check(png, cache, 0.51)  # lerobot's own scaling to [0, 1] and back
        check(video, cache, 2.0)
        competitors = {
            "burnish": functools.partial(burnish, video, cache),
            "lerobot PNG": functools.partial(lerobot, png, None),
            "lerobot pyav": functools.partial(lerobot, video, "pyav"),
        }
        missing = torchcodec_error()
        if not missing:
            competitors["lerobot torchcodec"] = functools.partial(lerobot, video, "torchcodec")
        timings = harness.measure(competitors, chosen.rounds)
    figures = {name: 1 / item.cpu for name, item in timings.items()}
    against = "lerobot pyav" if missing else "lerobot torchcodec"
    case = Case(figures.pop("burnish"), figures, goal=50.0, against=against, lower_is_better=False)
    note = (
        "torchcodec needs FFmpeg's libraries, which this machine lacks; the ratio is against pyav." if missing else ""
    )
    harness.write(
        "dataset_load",
        {"batch": case},
        chosen,
        unit="batches per CPU second",
        about=__doc__ or "",
        packages=("lerobot", "av", "torchcodec"),
        note=note,
        seconds=harness.wall(timings),
    )


if __name__ == "__main__":
    main()
