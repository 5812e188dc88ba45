"""The real data sets, where this machine has them (see docs/how-to/data.md for where to put them)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedasmu.data import describe, load
from fedasmu.data.description import Description
from fedasmu.data.examples import Dataset
from fedasmu.data.places import find

pytestmark = pytest.mark.needs_real_data


def real(name: str | Description) -> Dataset:
    description = describe(name) if isinstance(name, str) else name
    if find(description, None) is None:
        pytest.skip(
            f"{description.name} is not on this machine: `fedasmu data where {description.name}` lists the places"
        )
    return load(description)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_fashion_mnist() -> None:
    data = real("fashion-mnist")
    assert data.train.targets.bincount().tolist() == [6_000] * 10
    assert data.test.targets.bincount().tolist() == [1_000] * 10
    seen, _ = data.train.batch(slice(0, None))
    assert seen.mean().item() == pytest.approx(0, abs=0.01)
    assert seen.std().item() == pytest.approx(1, abs=0.01)


def test_the_embedded_part_is_the_first_of_each_class() -> None:
    full, part = real("fashion-mnist"), load("fashion-mnist-small")
    for ours, whole, each in ((part.train, full.train, 1_000), (part.test, full.test, 200)):
        firsts = [(whole.targets == label).nonzero()[:each, 0] for label in range(10)]
        chosen = torch.cat(firsts).sort().values
        assert torch.equal(ours.inputs, whole.inputs[chosen])
        assert torch.equal(ours.targets, whole.targets[chosen])


def test_cifar_10_binary_and_pickles() -> None:
    description = describe("cifar-10")
    both = [real(replace(description, parts=((layout,),))) for layout in description.parts[0]]
    assert torch.equal(both[0].train.inputs, both[1].train.inputs)
    assert torch.equal(both[0].test.targets, both[1].test.targets)
    assert both[0].train.targets.bincount().tolist() == [5_000] * 10
    seen, _ = both[0].train.batch(slice(0, 20_000))
    assert seen.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=0.02)
    assert seen.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=0.02)


@pytest.mark.usefixtures("own_cache")
def test_imdb() -> None:
    data = real("imdb")
    assert data.train.inputs.shape == data.test.inputs.shape == (25_000, 500)
    assert data.train.targets.bincount().tolist() == [12_500] * 2
    assert data.words[:6] == ("<pad>", "<unk>", "the", "and", "a", "of")
    assert (len(data.words), int(data.train.inputs.max())) == (10_000, 9_999)
    assert (data.train.inputs[:, -1] != 0).all()
    assert torch.equal(load("imdb").train.inputs, data.train.inputs)


@pytest.mark.parametrize("name", ["mnist", "cifar-100", "mnist-writers", "tiny-imagenet", "uci-har"])
def test_the_others(name: str) -> None:
    data = real(name)
    assert len(set(data.train.targets.tolist())) == data.classes
    assert data.shape == describe(name).shape
    assert (data.users is not None) == describe(name).natural_users
