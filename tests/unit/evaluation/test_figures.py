import xml.etree.ElementTree as ET

import numpy as np
import pytest

from burnish.evaluation import figures
from burnish.evaluation.compare import TaskComparison
from burnish.evaluation.curves import Curve
from burnish.evaluation.statistics import mcnemar, wilson


def drawings():
    x = np.linspace(0, 2e5, 20)
    curve = Curve("collect/success", "env_steps", x, x / 2e5, x / 2e5 - 0.1, x / 2e5 + 0.1, "range")
    flags = np.array([True, False])
    task = TaskComparison("a < b", wilson(1, 4), wilson(3, 4), mcnemar(flags, flags))
    sample = np.random.default_rng(0).gamma(4, 10, 100)
    return {
        "curves": lambda: figures.curves_figure([curve] * 2),
        "tasks": lambda: figures.tasks_figure([task, task]),
        "histograms": lambda: figures.histograms_figure([("peak_force", "N", sample, sample / 2)]),
        "one side": lambda: figures.histograms_figure([("peak_force", "N", None, sample)]),
    }


@pytest.mark.parametrize("name", drawings())
def test_a_figure_is_plain_svg_in_the_colours_of_the_page(name):
    text = drawings()[name]()
    root = ET.fromstring(text.replace("xlink:href", "href"))
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    assert "width" not in root.attrib
    assert "var(--after)" in text
    assert not any(stand_in in text for stand_in in figures.VARIABLES)
    assert "<metadata" not in text
    assert "<style" not in text


def test_the_same_data_give_the_same_text():
    assert drawings()["tasks"]() == drawings()["tasks"]()


def test_bins_cover_all_readings():
    assert figures.bin_edges(np.array([2.0, 2.0])).tolist()[::16] == [1.5, 2.5]
    edges = figures.bin_edges(np.arange(1000.0))
    assert (edges[0], edges[-1]) == (0, 999)
    assert 16 <= len(edges) - 1 <= 40


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (1500, "1.5k"), (2e6, "2M"), (3.4e9, "3.4G"), (0.25, "0.25")])
def test_large_counts_are_short(value, text):
    assert figures.thousands(value) == text
