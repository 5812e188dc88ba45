"""One run as a table and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedasmu.report.summary import lines
from fedasmu.storage.record import SERVED
from helpers.made_runs import made_run


def test_only_simulated_time_is_called_virtual(tmp_path: Path) -> None:
    result = made_run(tmp_path / "run")
    assert {"virtual time", "virtual time to 0.5"} <= dict(lines(result)).keys()
    assert result.plot().axes[0].get_xlabel() == "virtual time (s)"
    (tmp_path / "run" / SERVED).write_text("{}")
    assert {"time", "time to 0.5"} <= dict(lines(result)).keys()
    assert result.plot().axes[0].get_xlabel() == "time (s)"


@pytest.mark.parametrize(
    "curve",
    [
        [(0, 0.1), (199_000, 0.45), (200_000, 0.72)],  # both targets are reached at the very end
        [(0, 0.1), (100, 0.72), (200_000, 0.75)],
        [(0, 0.1), (100_000, 0.55), (200_000, 0.7)],
    ],
)
def test_the_label_of_a_target_stays_within_the_frame(curve: list[tuple[float, float]], tmp_path: Path) -> None:
    figure = made_run(tmp_path / "run", curve=curve).plot()
    figure.draw_without_rendering()
    [axes] = figure.axes
    assert len(axes.texts) == 2
    for label in axes.texts:
        box, frame = label.get_window_extent(), axes.bbox
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1, label.get_text()
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1, label.get_text()
