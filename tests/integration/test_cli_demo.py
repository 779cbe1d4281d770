"""The demo with hardly any training: every stage runs, an interrupted one goes on, and nothing is done twice."""

import json
from pathlib import Path

import pytest

from burnish.cli.main import main

TINY = (
    *("--demonstrations", "4", "--pretrain_steps", "20", "--iterations", "1", "--episodes", "6"),
    *("--num_envs", "2", "--videos", "1"),
)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), *TINY]) == 0
    printed = capsys.readouterr().out
    for stage in ("Record demonstrations", "Pretrain", "Post-train", "Compare", "Deploy", "Summary"):
        assert stage in printed
    assert "Serving act (contact/touch) at ws://127.0.0.1:" in printed
    assert "Success before:" in printed
    report = out / "better" / "evaluations" / "demo" / "comparison.html"
    assert str(report) in printed.replace("\n", "")
    assert report.stat().st_size > 10_000

    state = json.loads((out / "demo.json").read_text())
    state["seconds"].pop("Compare")
    (out / "demo.json").write_text(json.dumps(state))
    report.unlink()
    assert main(["demo", "--out", str(out), *TINY]) == 0
    assert capsys.readouterr().out.count("Done before") == 5
    assert report.is_file()

    assert main(["demo", "--out", str(out), *TINY, "--seed", "3"]) == 2
    assert "made with another seed" in capsys.readouterr().err
