"""The figure of what FedASMU decided during a run."""

from __future__ import annotations

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("method", "panels"),
    [
        ("fedasmu", ["weight α", "weight β", "reward", "slot", "controls on the server", "controls on the devices"]),
        ("fedasmu-fa", ["weight α", "controls on the server"]),  # no merge, no beta
        ("fedasmu-r", ["weight α", "weight β", "reward", "slot"]),
    ],
)
def test_a_method_has_panels_of_what_it_decides(method: str, panels: list[str], run: Run) -> None:
    figure = draw_inside(run(algorithm={"name": method}))
    assert figure is not None
    for axes, title in zip(figure.axes, panels, strict=True):
        assert axes.get_title(loc="center").startswith(title)
        assert any(len(np.asarray(line.get_ydata())) for line in axes.lines), title


def test_other_methods_have_no_such_figure(run: Run) -> None:
    assert draw_inside(run(algorithm={"name": "fedavg"})) is None
