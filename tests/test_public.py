"""What a notebook user meets: the public names, a comparison, a recipe by name, results that show themselves."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedasmu
from fedasmu import Experiment, FederatedData, UserError
from fedasmu.algorithms import FedAsync
from fedasmu.models import build
from helpers.blobs import Run, blobs, settings, softmax
from helpers.repository import ROOT

SMALL = {"data.name": "fashion-mnist-small", "model": "softmax", "fleet.devices": 20, "stop.uploads": 4}


def test_every_public_name_is_offered_and_is_there() -> None:
    assert set(fedasmu.__all__) < set(dir(fedasmu))
    assert not [name for name in dir(fedasmu) if name.startswith("_") and name != "__version__"]
    for name in fedasmu.__all__:
        assert getattr(fedasmu, name) is not None


def test_the_reference_has_every_public_name_and_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == set(fedasmu.__all__)
    assert page == made["text"](), "make api"


def test_the_names_alone_need_no_torch() -> None:
    code = "import sys, fedasmu; dir(fedasmu); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recipe_by_its_name(tmp_path: Path) -> None:
    result = Experiment("quickstart", SMALL).run(tmp_path / "run", progress=True)
    assert result.summary["uploads"] == 4
    with pytest.raises(UserError, match="did you mean quickstart"):
        Experiment("quickstrat")
    with pytest.raises(UserError, match=r"changes:\n  local\.lr = -1"):
        Experiment("quickstart", {"local.lr": -1})


def test_with_a_bar_an_observer_is_still_shown_every_line_and_told_what_is_said(tmp_path: Path) -> None:
    lines: list[object] = []
    said: list[str] = []
    run = Experiment(settings(stop={"uploads": 4}), model=softmax, data=blobs()).run
    run(tmp_path / "run", progress=True, observe=lambda desk, line: lines.append(line), say=said.append)
    assert len(lines) >= 4
    assert any(one.startswith("engine: ") for one in said)


def test_a_table_with_changes() -> None:
    assert Experiment(settings(), {"local.lr": 0.3}).config.local.lr == 0.3
    assert Experiment(settings(algorithm=FedAsync(alpha=0.2)), {"seed": 4}).config.algorithm == FedAsync(alpha=0.2)
    with pytest.raises(UserError, match="write local as a table"):
        Experiment({**settings(), "local.lr": 0.3})


def test_a_result_shows_itself(run: Run) -> None:
    result = run()
    assert "fedasync on your own, seed 0, accuracy 0." in repr(result)
    html = result._repr_html_()
    assert "<th>mean staleness (1 = fresh)</th>" in html
    [axes] = result.plot().axes
    assert axes.get_xlabel() == "virtual time (s)"
    (result.directory / "summary.json").unlink()
    assert "unfinished" in repr(fedasmu.Result(result.directory))


def test_the_final_model_by_its_name(tmp_path: Path) -> None:
    result = Experiment("quickstart", {**SMALL, "model": "lenet5"}).run(tmp_path / "run")
    module = result.model()
    assert not module.training
    same = build("lenet5", shape=(1, 28, 28), classes=10, seed=5)
    same.load_state_dict(result.state_dict)
    inputs = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert torch.equal(module(inputs), same.eval()(inputs))


def test_the_final_model_of_ones_own(run: Run) -> None:
    result = run()
    module = result.model(softmax())
    assert torch.equal(module.state_dict()["weight"], result.state_dict["weight"])
    with pytest.raises(UserError, match="are your own: give a module"):
        result.model()
    with pytest.raises(UserError, match="do not fit"):
        result.model(nn.Linear(3, 2))


def test_a_comparison(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    made = fedasmu.compare(
        "quickstart", ["fedavg", "fedasync(alpha=0.9)"], seeds=2, changes=SMALL, out=tmp_path / "grid", progress=False
    )
    assert len(made.results) == len(made.frame()) == 4
    assert made.failures == {}
    assert "fedasync-alpha-0.9" in str(made)
    assert (made.report() / "report.html").is_file()
    one: Any = np.int64(1)
    again = fedasmu.compare("quickstart", "fedavg", seeds=one, changes=SMALL, out=tmp_path / "grid", progress=False)
    assert again.results == made.results[:1]
    with pytest.raises(UserError, match="seeds = 0"):
        fedasmu.compare("quickstart", seeds=0)


def test_a_study_in_python_takes_a_recipe_that_names_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "network_for_a_study.py").write_text(
        "from torch import nn\n\ndef network():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('model = "network_for_a_study:network"\nalgorithm = "fedavg"\n')
    options: dict[str, Any] = {
        "seeds": 1,
        "progress": False,
        "changes": {k: v for k, v in SMALL.items() if k != "model"},
    }
    with pytest.raises(UserError, match=r"in Python: allow_code=True"):
        fedasmu.compare(recipe, out=tmp_path / "refused", **options)
    options["allow_code"] = True
    made = fedasmu.compare(recipe, out=tmp_path / "compared", **options)
    assert (len(made.results), made.failures) == (1, {})
    swept = fedasmu.sweep(recipe, grid={"local.lr": [0.01]}, out=tmp_path / "swept", **options)
    assert swept.best == {"fedavg": ["local.lr=0.01"]}


def test_a_comparison_of_times_alone_shows_them(tmp_path: Path) -> None:
    changes = SMALL | {"timing_only": True}
    made = fedasmu.compare("quickstart", "fedavg,fedasync", seeds=1, changes=changes, out=tmp_path, progress=False)
    assert "times alone" in str(made)
    assert all(name in str(made) for name in ("fedavg", "fedasync"))


def test_a_comparison_of_which_nothing_came_says_why(tmp_path: Path) -> None:
    table = '[algorithm]\nname = "fedavg"\n[data]\nname = "fashion-mnist-small"\n[model]\nname = "vgg11"\n'
    (tmp_path / "recipe.toml").write_text(table)
    made = fedasmu.compare(tmp_path / "recipe.toml", seeds=1, out=tmp_path / "out", progress=False)
    assert made.results == ()
    assert "failed: fedavg, seed 0: model.name = 'vgg11': vgg11 needs images" in str(made)


def test_whom_nothing_was_found_for_is_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"changes": SMALL, "progress": False, "seeds": 1}
    (tmp_path / "tuned.json").write_text('{"best": {"fedavg": ["local.lr=0.05"]}}')
    options["tuned"] = tmp_path / "tuned.json"
    made = fedasmu.compare("quickstart", "fedavg,fedasync", out=tmp_path / "compared", **options)
    assert made.untuned == ("fedasync",)
    assert "no settings were found for fedasync: it ran with the recipe's" in str(made)
    grid = {"local.weight_decay": [0, 0.01]}
    swept = fedasmu.sweep("quickstart", "fedavg,fedbuff", grid=grid, out=tmp_path / "swept", **options)
    assert swept.untuned == ("fedbuff",)
    assert "no settings were found for fedbuff: it began with the recipe's" in str(swept)


def test_a_sweep(tmp_path: Path) -> None:
    """What is best is found on held-out training data; a comparison takes it, as it is or from the disk."""
    options: dict[str, Any] = {"changes": SMALL, "progress": False}
    swept = fedasmu.sweep("quickstart", "fedavg", grid={"local.lr": [1e-6, 0.05]}, out=tmp_path / "swept", **options)
    assert swept.failures == {}
    assert swept.best == {"fedavg": ["local.lr=0.05"]}
    assert swept.edges == ["fedavg: local.lr = 0.05 is the largest that was tried"]
    assert "held-out training data" in str(swept)
    assert "a better one may lie beyond" in str(swept)
    for place, tuned in (("one", swept), ("two", tmp_path / "swept"), ("three", str(tmp_path / "swept/tuned.json"))):
        made = fedasmu.compare("quickstart", "fedavg", seeds=1, tuned=tuned, out=tmp_path / place, **options)
        config = made.results[0].config
        assert (config["local"]["lr"], config["data"]["held_out"]) == (0.05, 0.0)
    assert len(fedasmu.sweep("quickstart", "fedavg", trials=2, out=tmp_path / "drawn", **options).tried) == 2
    grid = {"local.weight_decay": [0.01]}
    second = fedasmu.sweep("quickstart", "fedavg", grid=grid, tuned=swept, out=tmp_path / "second", **options)
    assert second.best == {"fedavg": [*swept.best["fedavg"], "local.weight_decay=0.01"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "grid or trials: what is to be tried"),
        ({"grid": {"local.lr": [0.1]}, "trials": 2}, "grid or trials: what is to be tried"),
        ({"grid": {"lr": [0.1]}}, "grid lr: name the section too"),
        ({"grid": {"local.lr": "0.1,0.2"}}, "grid local.lr: give the values to try as a list, not '0.1,0.2'"),
        ({"grid": {"local.lr": 0.1}}, "grid local.lr: give the values to try as a list, not 0.1"),
        ({"grid": "local.lr=0.1"}, "grid: 'local.lr=0.1' is no table; for instance {'local.lr':"),
        ({"grid": {"fedasync.alpha": [0.1]}}, "grid fedasync.alpha: none of the methods has it"),
        ({"trials": 99}, "trials = 99: must be 1 to 9"),
        ({"trials": 1, "seeds": 0}, "seeds = 0"),
        ({"trials": 1, "seeds": 2.5}, "seeds = 2.5"),
        ({"trials": 1, "changes": {"local.lrr": 1}}, "changes:\n  local.lrr: unknown key; did you mean local.lr?"),
        ({"trials": 1, "changes": {"algorithm.name": "fedasync"}}, "changes algorithm.name: the list of methods says"),
        ({"trials": 1, "changes": {"data.held_out": 0}}, "data.held_out = 0: a sweep needs training data"),
    ],
)
def test_a_mistake_in_a_sweep_is_told_in_the_words_of_python(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as told:
        fedasmu.sweep("quickstart", "fedavg", **options)
    assert message in str(told.value)
    assert "--" not in str(told.value)


@pytest.mark.parametrize("methods", ["fedavgg", "fedavg(alpha)", ",", "fedavg(", "nowhere:Method", "a b"])
def test_a_mistake_in_a_list_of_methods_is_told_in_the_words_of_python(methods: str) -> None:
    with pytest.raises(UserError) as told:
        fedasmu.compare("quickstart", methods)
    assert "--" not in str(told.value)


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    data = blobs()
    return data.train.inputs, data.train.targets


GIVEN: dict[str, Any] = {
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "doubles": lambda x, y: (x.numpy().astype(np.float64), y.numpy().astype(np.int32)),
    "a torch Dataset": lambda x, y: TensorDataset(x, y),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_data_in_other_forms(kind: str) -> None:
    inputs, targets = pairs()
    given = GIVEN[kind](inputs, targets)
    data = FederatedData.of(given, given, [range(10)])
    assert torch.equal(data.train.inputs, inputs)
    assert torch.equal(data.test.targets, targets)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "train: must be .inputs, targets."),
        ((torch.zeros(3), torch.zeros(3), torch.zeros(3)), "two tensors or numpy arrays"),
        ((torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64)), "targets must be classes, one whole number each"),
        ((torch.zeros(3, 2), torch.tensor([0, 1, float("nan")])), "the targets are not all finite"),
        ((["a", "b"], torch.zeros(2)), "two tensors or numpy arrays"),
    ],
)
def test_data_in_forms_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FederatedData.of(given, given, [[0]])


def test_what_is_no_federated_data_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"data: a function; make it with FederatedData\.of"):
        Experiment(settings(), model=softmax, data=blobs)  # type: ignore[arg-type]


def test_the_name_of_a_model_is_no_model() -> None:
    with pytest.raises(UserError, match=r"model: 'softmax' makes no network.*names are settings"):
        Experiment(settings(), model="softmax", data=blobs())  # type: ignore[arg-type]


def test_a_section_is_no_change() -> None:
    with pytest.raises(UserError, match=r"stop is a section; name its keys, as in {'stop.uploads': 10}"):
        Experiment("quickstart", {"stop": {"uploads": 10}})


def test_a_study_of_a_table_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="recipe: its name or its file, not a dict"):
        fedasmu.compare({"algorithm": "fedavg"}, "fedavg")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, 3])
def test_what_is_no_settings_is_refused_in_a_sentence(given: Any) -> None:
    with pytest.raises(UserError, match=f"settings: .* not {given}"):
        Experiment(given)


def test_a_model_that_ends_the_process_is_refused_in_a_sentence(tmp_path: Path) -> None:
    class Ending(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            raise SystemExit(3)

    with pytest.raises(UserError, match=r"cannot take inputs of shape .*SystemExit: 3"):
        Experiment(settings(), model=lambda: Ending(20, 2), data=blobs()).run(tmp_path / "run")


def test_data_in_any_order_of_memory(tmp_path: Path) -> None:
    """Pictures that were turned from height, width, colour to colour, height, width."""
    pair = np.zeros((8, 30, 28, 3), dtype=np.float32).transpose(0, 3, 1, 2), np.arange(8) % 2
    table = settings(model="lenet5", stop={"uploads": 1}, fleet={"devices": 1})
    result = Experiment(table, data=FederatedData.of(pair, pair, [range(8)])).run(tmp_path / "run")
    assert result.summary["uploads"] == 1


def test_a_module_that_is_made_already() -> None:
    with pytest.raises(UserError, match="this is a Linear, already made"):
        Experiment(settings(), model=nn.Linear(20, 3), data=blobs())


def test_data_of_ones_own_are_judged_on_what_they_bring(tmp_path: Path) -> None:
    """Where a part was to be held out of the training data, it would have been the test data, silently."""
    with pytest.raises(UserError, match=r"data\.held_out = 0\.2: cannot hold out a part of data of your own; return"):
        Experiment(settings(data={"held_out": 0.2}), model=lambda: nn.Linear(20, 2), data=blobs()).run(tmp_path / "run")


def test_what_would_divide_data_of_ones_own_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "divided_already.py").write_text(
        "import torch\nfrom fedasmu import FederatedData\n\ndef data():\n"
        "    pair = torch.zeros(4, 20), torch.arange(4) % 2\n"
        "    return FederatedData.of(pair, pair, [[0, 1], [2, 3]])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []
    table = settings(model="softmax", fleet={"devices": 2}, stop={"uploads": 1}, data={"name": "divided_already:data"})
    experiment = Experiment(table, {"data.split": "iid"})
    experiment.run(tmp_path / "run", say=said.append)
    assert "data.split = iid is not used: data of your own come divided over their devices" in said
    with pytest.raises(UserError, match=r"data\.held_out = 0\.2: cannot hold out a part of data of your own"):
        Experiment(table, {"data.held_out": 0.2}).run(tmp_path / "held")


def test_a_model_that_cannot_be_made_without_arguments(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model: the model 'Linear' cannot be called without arguments: missing .*Net"):
        Experiment(settings(), model=cast(Any, nn.Linear), data=blobs()).run(tmp_path / "run")


def test_a_model_that_gives_no_tensor_is_refused_in_a_sentence(tmp_path: Path) -> None:
    class Two(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input), input

    with pytest.raises(UserError, match="the model gives a tuple; it must give a tensor, a row for each example"):
        Experiment(settings(), model=lambda: Two(20, 2), data=blobs()).run(tmp_path / "run")


def test_a_number_of_devices_that_the_data_do_not_have_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    table = settings(fleet={"devices": 7}, stop={"uploads": 1})
    result = Experiment(table, model=lambda: nn.Linear(20, 2), data=blobs()).run(tmp_path / "run", say=said.append)
    assert "fleet.devices = 7: the data are on 10 devices, and so is the run" in said
    assert result.config["fleet"]["devices"] == 10
