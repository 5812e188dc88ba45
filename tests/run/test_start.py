"""A run that starts from given weights: checked before any work, the same from a file and from Python, vouched for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedasmu import Experiment, Result, cli
from fedasmu.errors import UserError
from fedasmu.study.cells import cells
from fedasmu.study.variants import Variant
from helpers.blobs import Run, blobs, network, of_method, outputs, settings, softmax

SHORT: dict[str, Any] = {"stop": {"uploads": 6}}


def weights() -> dict[str, Tensor]:
    """Of `softmax`, and unlike any that a seed draws."""
    return {"weight": torch.linspace(-1, 1, 40).view(2, 20), "bias": torch.tensor([0.25, -0.5])}


def saved(folder: Path, tensors: dict[str, Tensor] | None = None) -> Path:
    path = folder / "first.safetensors"
    save_file(tensors or weights(), path)
    return path


def test_the_first_model_is_the_given_one(tmp_path: Path) -> None:
    seen: list[Tensor] = []
    path = saved(tmp_path)

    def look(desk: Any, line: Any) -> None:
        if not seen:
            seen.append(desk.server.model.vector.clone())

    Experiment(settings(**SHORT), model=softmax, data=blobs(), weights=path).run(tmp_path / "run", observe=look)
    assert torch.equal(seen[0], torch.cat([weights()["weight"].flatten(), weights()["bias"]]))


def test_a_file_a_state_dict_and_a_recipe_give_the_same_bytes_for_any_workers(tmp_path: Path) -> None:
    path = saved(tmp_path)
    ways: dict[str, dict[str, Any]] = {"file": {"weights": str(path)}, "dict": {"weights": weights()}, "recipe": {}}
    found = []
    for name, own in ways.items():
        section: dict[str, Any] = {} if own else {"changes": {"model.weights": str(path)}}
        experiment = Experiment(settings(**SHORT), **section, model=softmax, data=blobs(), **own)
        found.append(outputs(experiment.run(tmp_path / name, workers=2 if name == "dict" else "inline")))
    assert found[0] == found[1] == found[2]
    drawn = Experiment(settings(**SHORT), model=softmax, data=blobs()).run(tmp_path / "drawn")
    assert outputs(drawn) != found[0]


def test_another_run_goes_on_from_the_model_of_a_first(run: Run, tmp_path: Path) -> None:
    first = run(**of_method("fedasmu"), model=network, stop={"uploads": 20})
    table = settings(**of_method("fedavg"), stop={"uploads": 1})
    second = Experiment(table, model=network, data=blobs(), weights=first.state_dict).run(tmp_path / "second")
    assert second.curve["accuracy"][0] == first.last_score, "statistics of BatchNorm included"


def strange(**changes: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in {**weights(), **changes}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (strange(bias=None), "lacks the model's tensor 'bias'"),
        (strange(wieght=torch.zeros(2, 20)), "no tensor 'wieght'; did you mean weight"),
        (strange(bias=torch.zeros(3)), "'bias' is torch.float32 (3,), and the model's are"),
        (strange(bias=torch.zeros(2, dtype=torch.int64)), "'bias' is torch.int64"),
        (strange(bias=torch.tensor([1.0, float("nan")])), "'bias' has values that are not finite"),
        (strange(bias=torch.tensor([1.0, 1e39], dtype=torch.float64)), "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_work(
    tensors: dict[str, Tensor], words: str, tmp_path: Path
) -> None:
    for given in (tensors, saved(tmp_path, tensors)):
        with pytest.raises(UserError) as refused:
            Experiment(settings(), model=softmax, data=blobs(), weights=given).run(tmp_path / "run")
        assert words in str(refused.value)
        assert not (tmp_path / "run").exists()


def test_a_file_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "model.pt")
    for name, words in (("model.pt", "not a safetensors file"), ("nothing", "cannot be read: No such file")):
        with pytest.raises(UserError, match=f"model.weights = .*{name}: {words}"):
            Experiment(settings(), model=softmax, data=blobs(), weights=tmp_path / name).run(tmp_path / "run")
    with pytest.raises(UserError, match=r"model\.weights names none"):
        Experiment(settings(), {"model.weights_sha256": "0" * 64})


def begun(folder: Path, given: Any) -> Path:
    """A run that was stopped after its first checkpoint."""

    def stop(desk: Any, line: Any) -> None:
        if desk.server.counters.received == 4:
            raise KeyboardInterrupt

    table = settings(checkpoint_seconds=1e-9, **SHORT)
    with pytest.raises(KeyboardInterrupt):
        Experiment(table, model=softmax, data=blobs(), weights=given).run(folder / "begun", observe=stop)
    return folder / "begun"


def resumed(directory: Path, **own: Any) -> Result:
    experiment = Experiment.of_run(directory, model=softmax, data=blobs(), **own)
    return experiment.run(directory, resume=True)


def test_a_run_directory_is_told_which_of_its_files_has_the_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.weights = .*: a folder; name the file, as .*model\.safetensors"):
        Experiment(settings(), model=softmax, data=blobs(), weights=tmp_path).run(tmp_path / "run")


def test_a_resume_vouches_for_the_weights(tmp_path: Path) -> None:
    path = saved(tmp_path)
    directory = begun(tmp_path, path)
    whole = Experiment(settings(**SHORT), model=softmax, data=blobs(), weights=path).run(tmp_path / "whole")
    other = strange(bias=torch.tensor([0.0, 1.0]))
    save_file(other, path)
    with pytest.raises(UserError, match=r"first\.safetensors: not the weights that the recipe names"):
        resumed(directory)
    with pytest.raises(UserError, match="weights: not the weights that the recipe names"):
        resumed(directory, weights=other)
    moved = tmp_path / "moved.safetensors"
    save_file(weights(), moved)
    assert outputs(resumed(directory, weights=moved)) == outputs(whole)


def test_weights_of_python_are_asked_for_again(tmp_path: Path) -> None:
    directory = begun(tmp_path, weights())
    with pytest.raises(UserError, match=r"given in Python: resume it with Experiment.of_run\(dir, weights=...\)"):
        resumed(directory)
    assert resumed(directory, weights=weights()).summary["uploads"] == 6


def test_a_study_sees_that_the_weights_are_others(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('model = "softmax"\ntiming_only = true\nalgorithm = "fedavg"\nstop.uploads = 3')
    tensors = {"1.weight": torch.zeros(10, 784), "1.bias": torch.zeros(10)}

    def cell() -> Any:
        overrides = [f"model.weights={saved(tmp_path, tensors)}"]
        return cells(recipe, [Variant("fedavg", "fedavg", ())], [0], tmp_path / "out", overrides)[0]

    first = cell()
    Experiment(first.config).run(first.directory)
    assert cell().stage() == "finished"
    tensors["1.bias"] += 1
    with pytest.raises(UserError, match=r"other settings \(model.weights_sha256\)"):
        cell().stage()


def test_two_models_are_one_too_many() -> None:
    with pytest.raises(UserError, match="model = 'lenet5': stands in the settings, and another is given as model="):
        Experiment(settings(model="lenet5"), model=lambda: nn.Linear(20, 2), data=blobs())


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, {"1.weight": torch.zeros(10, 784), "1.bias": torch.arange(10.0)})
    monkeypatch.chdir(tmp_path)
    small = [
        "data.name=fashion-mnist-small",
        "stop.uploads=1",
        "local.lr=1e-30",
        "local.lr_floor=0",
        "model.name=softmax",
    ]
    sets = [word for change in (*small, "model.weights=first.safetensors") for word in ("--set", change)]
    monkeypatch.setattr(sys, "argv", ["fedasmu", "run", "quickstart", *sets, "--out", "run", "--workers", "inline"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    ended_with = load_file(tmp_path / "run" / "model.safetensors")["1.bias"]
    assert torch.allclose(ended_with, torch.arange(10.0)), "so small a rate moves nothing"
    assert Result("run").config["model"]["weights"] == str(path)
