import io
import json
from pathlib import Path

from rich.console import Console

from burnish.rl.log import RunLog, progress, read_metrics


def test_rows_are_kept_up_to_the_checkpoint_that_is_resumed(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for iteration in (1, 2, 3):
        log.write({"iteration": iteration, "return": 0.5, "value/loss": 1.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"iteration": 4, "ret')
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    log = RunLog(tmp_path, after=2)
    log.write({"iteration": 3, "return": 0.7})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines][1:] == [
        {"iteration": 2, "return": 0.5, "value/loss": 1.0},
        {"iteration": 3, "return": 0.7},
    ]
    assert list((tmp_path / "tensorboard").iterdir())


def test_progress_without_a_terminal_prints_a_line_per_tenth() -> None:
    text = io.StringIO()
    with progress(20, Console(file=text, width=200)) as report:
        for iteration in range(1, 21):
            report({"iteration": iteration, "seconds": 2.0 * iteration, "return": 1.5})
    lines = text.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("iteration")]) == 10
    assert "iteration 2/20  about 36 s left  return 1.5" in lines[0]


def test_progress_on_a_terminal_shows_the_time_left() -> None:
    text = io.StringIO()
    with progress(2, Console(file=text, width=160, force_terminal=True)) as report:
        report({"iteration": 1, "seconds": 2.0, "return": 1.5})
    assert "return 1.5" in text.getvalue()
    assert "left" in text.getvalue()
