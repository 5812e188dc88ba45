"""Tables of small errors and of small models: a row of zeros would tell nothing apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from fedasmu import Experiment
from fedasmu.measure import Metric
from fedasmu.report import latex
from fedasmu.report.league import League, find, leagues
from fedasmu.report.lessons import lesson
from fedasmu.report.summary import lines
from fedasmu.report.tables import communication_table, main_table
from helpers.blobs import blobs, settings, softmax

SHOWN = {
    ("accuracy", 0.00504): "0.0050",
    ("accuracy", 0.5): "0.5000",
    ("rmse", 0.99952): "0.9995",
    ("rmse", 12.34567): "12.3457",
    ("rmse", 0.0123): "0.0123",
    ("rmse", 0.00012345): "0.000123",
    ("rmse", 0.0): "0.0000",
    ("r2", -0.14571): "-0.1457",
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_score_is_shown_with_digits_that_tell(case: tuple[str, float]) -> None:
    name, value = case
    assert Metric.of(name).shown(value) == SHOWN[case]


def gap(outputs: Tensor, targets: Tensor) -> float:
    return 1e-5 * float((outputs.argmax(1) != targets).float().mean() + 1)


@pytest.fixture
def small(tmp_path: Path) -> League:
    for seed in range(2):
        table = settings(stop={"uploads": 12}, seed=seed)
        experiment = Experiment(table, model=softmax, data=blobs(), metric=gap, larger_is_better=False)
        experiment.run(tmp_path / "fedasync" / f"seed-{seed}")
    (found,) = leagues(find([tmp_path]))
    return found


def test_a_small_error_is_no_row_of_zeros(small: League) -> None:
    result = small.reference.runs[0].result
    for name in ("gap", "last gap", "best gap (the least)"):
        assert float(dict(lines(result))[name]) == pytest.approx(result.last_score, rel=0.5)
    row = dict(zip(main_table(small).header, main_table(small).rows[0], strict=True))
    score, spread = row["gap"].split(" ± ")
    assert float(score) == pytest.approx(small.reference.score, rel=0.01)
    assert float(spread) == pytest.approx(small.reference.spread, rel=0.01)
    assert float(row["last"]) > 0 < float(row["best"])
    assert "e-05" in lesson(small)
    assert "e-05" in repr(result)


def test_a_small_model_is_no_row_of_zeros(small: League) -> None:
    for table in (main_table(small), communication_table(small)):
        row = dict(zip(table.header, table.rows[0], strict=True))
        assert float(row["MB down"]) == pytest.approx(small.reference.mean("bytes_down") / 1e6, rel=0.05)
        assert float(row["MB up"]) == pytest.approx(small.reference.mean("bytes_up") / 1e6, rel=0.05)


@pytest.mark.parametrize(
    ("score", "spread", "cell"),
    [
        (0.99952, 0.00575, r"0.9995 $\pm$ 0.0057"),
        (12.3456, 1.2, r"12.35 $\pm$ 1.20"),
        (1234.56, 10.2, r"1235 $\pm$ 10"),
        (-0.1457, 0.01, r"-0.1457 $\pm$ 0.0100"),
        (1.234e-5, 1e-7, r"1.234e-05 $\pm$ 1.000e-07"),
    ],
)
def test_latex_shows_an_error_as_far_as_its_deviation(score: float, spread: float, cell: str) -> None:
    assert latex.with_spread(Metric.of("rmse"), score, spread) == cell


def test_latex_shows_an_accuracy_in_percent() -> None:
    assert latex.with_spread(Metric(), 0.6312, 0.0041) == r"63.1 $\pm$ 0.4"
    assert latex.with_spread(Metric(), 0.6312, float("nan")) == "63.1"
