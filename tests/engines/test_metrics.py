"""A loss and a metric of the user's choice: regression, other metrics, by name, by consent and from Python."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedasmu import Experiment, FederatedData, Result
from fedasmu.engines import goal
from fedasmu.errors import UserError
from fedasmu.measure import Metric
from fedasmu.report.latex import table as latex
from fedasmu.report.league import find, leagues
from fedasmu.report.lessons import best, lesson, ranked
from fedasmu.report.page import write_page
from fedasmu.report.tables import main_table, write_csv
from helpers.blobs import Run, blobs, network, outputs, settings, softmax

OUTPUTS, TARGETS = torch.tensor([[1.0], [3.0], [-2.0], [0.0]]), torch.tensor([[2.0], [3.0], [-4.0], [1.0]])


def test_the_formulas_on_numbers_worked_by_hand() -> None:
    """Errors 1, 0, 2, 1: their squares sum to 6, their sizes to 4; the targets' squares around 0.5 sum to 29."""
    assert float(goal.mse(OUTPUTS, TARGETS)) == 1.5
    assert float(goal.mae(OUTPUTS, TARGETS)) == 1.0
    assert goal.rmse(OUTPUTS, TARGETS) == pytest.approx(math.sqrt(1.5))
    assert goal.r2(OUTPUTS, TARGETS) == pytest.approx(1 - 6 / 29)
    assert goal.r2(TARGETS, TARGETS) == 1
    assert goal.accuracy(torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 1])) == pytest.approx(
        2 / 3
    )


def test_what_better_means() -> None:
    values = np.array([3.0, 1.0, 2.0])
    accuracy, error = Metric.of("accuracy"), Metric.of("rmse")
    assert (accuracy.best(values), error.best(values)) == (3.0, 1.0)
    assert accuracy.reached(values, 2.0).tolist() == [0, 2]
    assert error.reached(values, 2.0).tolist() == [1, 2]
    assert Metric.of("mine:top_five") == Metric("top_five", True)
    assert Metric.of("mine:cost", larger=False) == Metric("cost", False)


def line(seed: int = 0) -> FederatedData:
    """y = 2 a - b + 0.5, on ten devices."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(300, 2, generator=generator)
    targets = 2 * inputs[:, 0] - inputs[:, 1] + 0.5
    split = torch.arange(200).view(10, 20)
    return FederatedData.of((inputs[:200], targets[:200]), (inputs[200:], targets[200:]), list(split))


def linear() -> nn.Module:
    return nn.Linear(2, 1)


def regression(name: str = "fedasmu", **changes: Any) -> dict[str, Any]:
    table = settings(algorithm={"name": name}, local={"loss": "mse"}, evaluate={"metric": "rmse"})
    table["evaluate"]["targets"] = [0.5, 0.05]
    return {**table, **changes}


@pytest.fixture
def regressed(tmp_path: Path) -> list[Result]:
    """Two methods, two seeds."""
    found = []
    for name in ("fedasmu", "fedavg"):
        for seed in (0, 1):
            directory = tmp_path / name / f"seed-{seed}"
            table = regression(name, seed=seed)
            found.append(Experiment(table, model=linear, data=line()).run(directory))
    return found


def test_a_regression_learns_and_says_what_it_measures(regressed: list[Result], tmp_path: Path) -> None:
    result = regressed[0]
    assert result.metric == Metric("rmse", False)
    assert (result.directory / "metrics.csv").read_text().startswith("time,version,uploads,rmse,loss,")
    assert result.summary["rmse"] == result.score < 0.1 < result.curve["rmse"][0]
    assert result.best_score == result.curve["rmse"].min() == result.summary["best_rmse"]
    first, second = result.summary["time_to"]["0.5"], result.summary["time_to"]["0.05"]
    assert 0 < first < second, "smaller is better, so it gets there later"
    np.testing.assert_allclose(result.curve["loss"], result.curve["rmse"] ** 2, rtol=1e-4)
    assert f"rmse {result.score:.3g} after" in repr(result), "a small error is no row of zeros"
    with pytest.raises(UserError, match="this run measured rmse"):
        _ = result.accuracy


def test_the_reports_put_the_least_error_first(regressed: list[Result], tmp_path: Path) -> None:
    (league,) = leagues(find([tmp_path]))
    assert ranked(league)[0].score == min(one.score for one in league.standings)
    table = main_table(league)
    assert table.header[1] == "rmse"
    assert "rmse (less is better): the mean of" in table.note
    assert "ends lowest, at a rmse of" in lesson(league)
    assert "points" not in lesson(league)
    assert any("rmse" in columns or "at" in columns for columns in best(league))
    assert "rmse & to 0.05 & to 0.5" in latex([league])
    head, row, *_ = write_csv([league]).splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=False))["metric"] == "rmse"
    page = write_page([tmp_path], tmp_path / "page.html").read_text()
    assert '"metric":{"name":"rmse","larger":false,"share":false}' in page


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_workers_and_a_resume_give_the_same_bytes(tmp_path: Path) -> None:
    def stop(desk: Any, line: Any) -> None:
        if desk.server.counters.received == 30:
            raise KeyboardInterrupt

    table = regression(checkpoint_seconds=1e-9)
    whole = Experiment(table, model=linear, data=line()).run(tmp_path / "whole", workers=2)
    with pytest.raises(KeyboardInterrupt):
        Experiment(table, model=linear, data=line()).run(tmp_path / "cut", observe=stop)
    resumed = Experiment.of_run(tmp_path / "cut", model=linear, data=line()).run(tmp_path / "cut", resume=True)
    assert outputs(resumed) == outputs(whole)


def surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of examples whose class was given less than one half."""
    return (outputs.softmax(1).gather(1, targets[:, None]) < 0.5).float().mean()


def test_another_metric_of_a_classifier_leaves_the_training_as_it_is(run: Run, tmp_path: Path) -> None:
    said: list[str] = []
    plain = run()
    experiment = Experiment(settings(), model=softmax, data=blobs(), metric=surprise, larger_is_better=False)
    own = experiment.run(tmp_path / "own", say=said.append)
    assert (own.directory / "model.safetensors").read_bytes() == (plain.directory / "model.safetensors").read_bytes()
    assert own.metric == Metric("surprise", False)
    np.testing.assert_allclose(own.curve["surprise"], 1 - plain.curve["accuracy"], atol=1e-6)  # of two classes
    np.testing.assert_allclose(own.curve["loss"], plain.curve["loss"], rtol=1e-5)
    assert not any("because" in text for text in said), "the native engine trains all the same"
    resume = Experiment.of_run(own.directory, model=softmax, data=blobs())
    (own.directory / "summary.json").unlink()
    with pytest.raises(UserError, match=r"metric was given in Python: resume it with Experiment.of_run\(dir, metric="):
        resume.run(own.directory, resume=True)


def test_a_loss_that_the_native_engine_does_not_know_goes_to_pytorch_with_the_reason(tmp_path: Path) -> None:
    said: list[str] = []

    def focal(outputs: Tensor, targets: Tensor) -> Tensor:
        surprise = functional.cross_entropy(outputs, targets, reduction="none")
        return ((1 - torch.exp(-surprise)) ** 2 * surprise).mean()

    result = Experiment(settings(), model=softmax, data=blobs(), loss=focal).run(tmp_path / "run", say=said.append)
    assert result.accuracy > 0.9
    assert any("PyTorch, because the native engine minimises the cross-entropy, not" in text for text in said)
    with pytest.raises(UserError, match="engine = 'native': the native engine minimises the cross-entropy"):
        Experiment(settings(engine="native"), model=softmax, data=blobs(), loss=focal).run(tmp_path / "native")


@pytest.mark.parametrize(
    ("given", "words"), [({"loss": "msee"}, "loss: 'msee'.*mean mse"), ({"metric": "mse"}, "metric: 'mse'.*mean rmse")]
)
def test_a_name_that_is_not_known_is_told_with_its_argument(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^{words}"):
        Experiment(settings(), model=softmax, data=blobs(), **given)


def test_a_recipe_names_code_by_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_measures.py").write_text(
        "def miss(outputs, targets):\n    return (outputs - targets).abs().max()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'algorithm = "fedavg"\nstop.uploads = 10\nlocal.loss = "my_measures:miss"\n'
        'evaluate = {metric = "my_measures:miss", larger_is_better = false}'
    )
    with pytest.raises(UserError) as refused:
        Experiment(recipe)
    assert "local.loss = 'my_measures:miss', evaluate.metric = 'my_measures:miss'" in str(refused.value)
    result = Experiment(recipe, allow_code=True, model=linear, data=line()).run(tmp_path / "run")
    assert result.metric == Metric("miss", False)
    assert sys.modules.pop("my_measures")


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(1)


@pytest.mark.parametrize(
    ("table", "own", "words"),
    [
        ({"local": {"loss": "mes"}}, {}, "local.loss: 'mes' is not known; did you mean mse?"),
        ({"evaluate": {"metric": "rsme"}}, {}, "did you mean rmse?"),
        ({"evaluate": {"metric": "rmse", "larger_is_better": True}}, {}, "rmse is better when it is smaller"),
        ({"evaluate": {"metric": "mine:loss"}}, {}, "metrics.csv has a column loss already"),
        ({"evaluate": {"targets": [70]}}, {}, "an accuracy should be greater than 0 and less than or equal to 1"),
        ({}, {"loss": 3}, "loss: a int; give a function of (outputs, targets), or a name"),
        ({}, {"loss": classes}, "must give one number, as a tensor with a gradient, not a tensor (100,)"),
        ({}, {"metric": classes}, "evaluate.metric = 'given-in-python/classes': must give one number"),
        ({}, {"loss": lambda outputs: outputs}, "local.loss = 'given-in-python/loss' failed: TypeError"),
        ({"algorithm": {"name": "moon"}}, {"loss": "mse"}, "local.loss = 'mse': moon has a loss of its own"),
        ({"local": {"loss": "mse"}}, {}, "local.loss = 'mse': the data's targets are classes, not numbers"),
        ({"evaluate": {"metric": "rmse"}}, {}, "evaluate.metric = 'rmse': the data's targets are classes, not numbers"),
        ({"local": {"loss": "mse", "calibrate": True}}, {}, "cross-entropy that can be calibrated; not mse"),
        (
            {"local": {"calibrate": True}, "algorithm": {"name": "moon"}},
            {},
            "local.calibrate = true: it is the cross-entropy that can be calibrated; moon has a loss of its own",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    table: dict[str, Any], own: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        Experiment(settings(**table), model=softmax, data=blobs(), **own).run(tmp_path / "run")
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


CLASSIFY = {"local.loss": "cross-entropy", "evaluate.metric": "accuracy", "evaluate.targets": []}


@pytest.mark.parametrize(
    ("changes", "model", "words"),
    [
        ({"local.loss": "cross-entropy"}, linear, "targets are numbers, not classes: choose a loss"),
        (CLASSIFY, lambda: nn.Linear(2, 3), "targets are numbers, not classes: choose a loss"),
        ({"evaluate.metric": "accuracy", "evaluate.targets": []}, linear, "choose a metric, as evaluate.metric"),
        ({}, lambda: nn.Linear(2, 3), "the model gives (3,) outputs, but the data have (1,) targets"),
    ],
)
def test_numbers_are_no_classes(changes: dict[str, Any], model: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        Experiment(regression(), changes, model=model, data=line()).run(tmp_path / "run")
    assert words in str(refused.value)


def test_a_model_of_ours_predicts_numbers(tmp_path: Path) -> None:
    """Two numbers for each example: the model has as many outputs."""
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    pair = inputs, inputs[:, :2] * 2
    data = FederatedData.of(pair, pair, [range(30), range(30, 60)])
    table = regression("fedavg", model={"name": "softmax"}, stop={"uploads": 4})
    result = Experiment(table, data=data).run(tmp_path / "run")
    assert result.state_dict["1.weight"].shape == (2, 3)
    with pytest.raises(UserError, match="classes = 2: the targets are numbers with a point"):
        FederatedData.of(pair, pair, [range(30)], classes=2)


def test_one_class_is_no_classifier(tmp_path: Path) -> None:
    pair = torch.zeros(4, 20), torch.zeros(4, dtype=torch.int64)
    data = FederatedData.of(pair, pair, [range(4)])
    with pytest.raises(UserError, match="the data have a single class"):
        Experiment(settings(), model=softmax, data=data).run(tmp_path / "run")


def test_over_a_network_devices_minimise_the_cross_entropy() -> None:
    from fedasmu.network.serving import check_recipe

    with pytest.raises(UserError, match=r"local\.loss = 'mse': over a network"):
        check_recipe(Experiment(regression(), model=network, data=line()).config)
