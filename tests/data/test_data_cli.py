"""From a recipe's [data] table to tensors and models, and `fedasmu data show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedasmu import data as datasets
from fedasmu.cli import app
from fedasmu.data import TextOptions, huggingface
from fedasmu.data.examples import Dataset, Examples
from fedasmu.data.split_summary import summary
from fedasmu.errors import UserError
from fedasmu.run.build import build
from fedasmu.run.materials import federated_data
from fedasmu.settings.config import Config
from fedasmu.settings.recipe import parse

WORDS = ("<pad>", "<unk>", "bad", "film", "good", "the")


def reviews(users: bool = False, vectors: bool = False) -> Dataset:
    """Sixty texts of eight words from four people."""
    generator = torch.Generator().manual_seed(0)
    train, test = (
        Examples(torch.randint(len(WORDS), (count, 8), generator=generator), torch.arange(count) % 2)
        for count in (60, 20)
    )
    whose, rows = torch.arange(60) % 4, torch.arange(18.0).view(6, 3)
    return Dataset("reviews", train, test, 2, whose if users else None, WORDS, rows if vectors else None)


class Loads:
    """Stands in for the readers, and remembers what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dataset: Dataset) -> None:
        self.dataset = dataset
        self.asked: dict[str, Any] = {}
        monkeypatch.setattr(datasets, "load", self)
        monkeypatch.setattr(huggingface, "from_disk", self)

    def __call__(self, *names: Any, **options: Any) -> Dataset:
        self.asked = options | {"names": names}
        return self.dataset


def config(**tables: Any) -> Config:
    data = {"name": "imdb", "split": "iid", **tables.pop("data", {})}
    return parse({"model": "textcnn", "fleet": {"devices": 3}, "algorithm": "fedavg", "data": data, **tables})


def silent(line: str) -> None:
    if not line.startswith(("imdb is not here", "data from ")):
        raise AssertionError(line)


def vocabulary(module: nn.Module) -> tuple[int, ...]:
    return tuple(module.get_parameter("words.weight").shape)


def built(**tables: Any) -> nn.Module:
    return build(config(**tables)).module


def test_text_options_reach_the_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = Loads(monkeypatch, reviews())
    keys: dict[str, Any] = {"vocabulary": 77, "length": 9, "padding": "post", "truncation": "post"}
    federated_data(config(data={**keys, "glove": str(tmp_path / "glove.txt")}), silent)
    assert loads.asked["text"] == TextOptions(**keys, glove=str(tmp_path / "glove.txt"))
    federated_data(config(), silent)
    assert loads.asked["text"] == TextOptions()


def test_textcnn_takes_vocabulary_and_vectors_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, reviews())
    assert vocabulary(built()) == (6, 100)
    Loads(monkeypatch, reviews(vectors=True))
    assert torch.equal(built().get_parameter("words.weight"), torch.arange(18.0).view(6, 3))
    assert vocabulary(built(data={"held_out": 0.2})) == (6, 3)


def test_a_larger_vocabulary_may_be_asked_for_and_a_smaller_one_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, reviews())
    assert vocabulary(built(model={"name": "textcnn", "vocabulary": 10, "embedding": 4})) == (10, 4)
    with pytest.raises(UserError, match=r"model.vocabulary = 5: the data have 6 words; .* set data.vocabulary"):
        built(model={"name": "textcnn", "vocabulary": 5})


def test_timing_only_knows_the_size_of_a_model_without_its_data() -> None:
    small = built(timing_only=True, data={"vocabulary": 50, "length": 20})
    assert vocabulary(small) == (50, 100)
    images = built(timing_only=True, model="vgg11", data={"name": "cifar-100"})
    assert sum(parameter.numel() for parameter in images.parameters()) == 9_797_092


@pytest.mark.parametrize(("fleet", "devices"), [({}, 4), ({"devices": 2}, 2), ({"preset": "devices-200"}, None)])
def test_one_device_a_user_unless_fewer_are_asked_for(
    fleet: dict[str, Any], devices: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loads(monkeypatch, reviews(users=True))
    wanted = config(data={"split": "user"}, fleet=fleet)
    if devices is None:
        with pytest.raises(UserError, match=r"data.split = 'user': devices = 200 .* 4 users"):
            federated_data(wanted, silent)
        return
    data, _ = federated_data(wanted, silent)
    people = [{int(index) % 4 for index in shard} for shard in data.shards]
    assert len(people) == devices
    assert sum(map(len, people)) == 4  # nobody is on two devices


def test_a_split_without_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, reviews())
    with pytest.raises(UserError, match="does not know who its examples come from"):
        federated_data(config(data={"split": "user"}), silent)


def test_a_repaired_split_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, reviews())
    said: list[str] = []
    repaired = config(data={"split": "dirichlet", "alpha": 0.02, "min_samples": 15}, fleet={"devices": 4})
    federated_data(repaired, said.append)
    assert said[-1].startswith("the split was repaired: ")
    assert "of 4 devices had fewer than 15 samples" in said[-1]


def test_a_hugging_face_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = Loads(monkeypatch, reviews())
    columns = {"inputs": "text", "targets": "stars", "user": "author"}
    here = {"name": "huggingface", "dir": str(tmp_path), "columns": columns, "length": 8}
    data, words = federated_data(config(data=here), silent)
    assert loads.asked == {"names": (tmp_path,), "text": TextOptions(length=8), **columns}
    assert (len(data.shards), words) == (3, {"vocabulary": 6})
    with pytest.raises(UserError, match=r"data.dir is missing"):
        federated_data(config(data={"name": "huggingface"}), silent)
    with pytest.raises(UserError, match=r"data.columns.input: unknown key; did you mean data.columns.inputs\?"):
        config(data={"columns": {"input": "text"}})


def show(*options: str) -> Any:
    return CliRunner().invoke(app, ["data", "show", *options])


def test_show_describes_the_split_of_a_run_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "split.png"
    split = ["--split", "dirichlet", "--alpha", "0.1", "--devices", "30", "--seed", "3"]
    shown = show("fashion-mnist-small", *split, "--out", str(picture))
    assert shown.exit_code == 0
    data = {"name": "fashion-mnist-small", "split": "dirichlet", "alpha": 0.1}
    same, _ = federated_data(config(data=data, fleet={"devices": 30}, seed=3), silent)
    found = summary(same.shards, same.train.targets, 10)
    assert "10,000 examples on 30 devices" in shown.output
    assert f"mean {found.mean_entropy:.2f} (all classes alike: 3.32)" in shown.output
    first, last, _ = found.histogram[0]
    assert f"{first:,} to {last:,}" in shown.output
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_show_says_that_a_split_was_repaired() -> None:
    shown = show("fashion-mnist-small", "--alpha", "0.03", "--devices", "100")
    assert "the split was repaired: " in shown.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["fashion-mnist-small", "--split", "dirichelt"], "data.split = "),
        (["fashion-mnist-small", "--alpha", "0"], "data.alpha = 0"),
        (["fashion-mnist-small", "--devices", "0"], "fleet.devices = 0"),
        (["fashion-mnist-small", "--split", "user"], "use another split"),
        (["fashion-mnits-small"], "did you mean fashion-mnist-small"),
    ],
)
def test_show_refuses_what_makes_no_sense(options: list[str], message: str) -> None:
    shown = show(*options)
    assert isinstance(shown.exception, UserError)
    assert message in str(shown.exception)


class Bag(nn.Module):
    """A text model of the user's own."""

    def __init__(self, vocabulary: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 4)
        self.classify = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classify(self.words(tokens).mean(1))  # type: ignore[no-any-return]


def test_any_model_that_takes_a_vocabulary_is_given_the_data_s(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, reviews())
    assert vocabulary(built(model={"name": "test_data_cli:Bag"})) == (6, 4)
    assert vocabulary(built(model={"name": "test_data_cli:Bag", "vocabulary": 9})) == (9, 4)
