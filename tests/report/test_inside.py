"""The figure of what FedASMU decided during a run."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedasmu.report.inside import draw_inside
from helpers.blobs import Run


def dots(figure: Figure, panel: int) -> list[float]:
    return [float(height) for height in np.asarray(figure.axes[panel].lines[0].get_ydata())]


def test_every_decision_of_a_run_is_a_dot(run: Run) -> None:
    result = run(algorithm={"name": "fedasmu"})
    figure = draw_inside(result)
    assert figure is not None
    merges = [event for event in result.events if "reward" in event]
    alphas, betas, rewards = (dots(figure, panel) for panel in range(3))
    assert len(alphas) == result.summary["version"]
    assert betas == [event["beta"] for event in merges]
    assert rewards == [event["reward"] for event in merges]


def test_ablations_draw_what_they_have(run: Run) -> None:
    figure = draw_inside(run(algorithm={"name": "fedasmu-fa"}))
    assert figure is not None
    assert dots(figure, 1) == []  # no merge, no beta


def test_other_methods_have_no_such_figure(run: Run) -> None:
    assert draw_inside(run(algorithm={"name": "fedavg"})) is None
