"""Turn a folder of recordings into a folder of linted scenes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from burnish.core.errors import DatasetError
from burnish.envs.driving import commonroad, gpudrive
from burnish.envs.driving.lint import lint
from burnish.envs.driving.recording import Recording, build_scenes, candidates
from burnish.envs.driving.scene import nearest_tracks, save

READERS: dict[str, Callable[[Path], Recording]] = {".xml": commonroad.read, ".json": gpudrive.read}
"""Suffix of a file to what reads it: CommonRoad XML, GPUDrive JSON."""


@dataclass
class Imported:
    """What an import did."""

    written: list[Path] = field(default_factory=list)
    """Scenes that were kept."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason to number of scenes that were not."""
    left_out: Counter[str] = field(default_factory=Counter)
    """What readers left out of recordings, and tracks beyond the slots, by reason."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """File to what is wrong with it."""


def import_recordings(source: Path, target: Path, *, slots: int = 32) -> Imported:
    """Read all recordings of a folder, make scenes of them, and write those that the linter keeps.

    Args:
        source: Folder with ``.xml`` (CommonRoad) and ``.json`` (GPUDrive) files.
        target: Folder for the ``.npz`` scenes; made where it does not exist.
        slots: Most tracks of a scene; those furthest from the ego are left out beyond, and counted.

    Returns:
        What was written, and what was dropped for which reason. A file that cannot be read stops nothing.

    Raises:
        DatasetError: If the folder has no recording.
    """
    files = sorted(path for path in source.glob("*") if path.suffix in READERS)
    if not files:
        raise DatasetError(f"There is no recording in {source}; {', '.join(READERS)} are read.")
    target.mkdir(parents=True, exist_ok=True)
    done = Imported()
    for path in files:
        try:
            recording = READERS[path.suffix](path)
            scenes = list(build_scenes(recording, candidates(recording)))
        except DatasetError as error:
            done.unreadable[path.name] = str(error)
            continue
        done.left_out.update(recording.dropped)
        if not scenes:
            done.dropped["no track that can be driven"] += 1
        done.left_out["track beyond the slots"] += sum(max(scene.num_tracks - slots, 0) for scene in scenes)
        report = lint([nearest_tracks(scene, slots) for scene in scenes])
        done.dropped.update(report.dropped)
        for scene in report.kept:
            name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in scene.id)
            file = target / f"{name}.npz"
            if file in done.written:
                done.dropped["same id as another scene"] += 1
                continue
            save(scene, file)
            done.written.append(file)
    return done
