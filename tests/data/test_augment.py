"""Random crops and mirrors: what they do to an image, and that they follow from the seed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedasmu import Experiment, FederatedData, Result
from fedasmu.data.augment import BORDER, augment, augmented
from fedasmu.data.examples import Examples
from fedasmu.errors import UserError
from helpers.blobs import blobs, outputs, softmax


def pictures(count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 255, (count, 3, 6, 9), generator=generator).to(dtype)


def every_crop(image: Tensor) -> list[Tensor]:
    """The 81 crops of an image, by the definition."""
    _, height, width = image.shape
    bordered = torch.zeros(3, height + 2 * BORDER, width + 2 * BORDER, dtype=image.dtype)
    bordered[:, BORDER : BORDER + height, BORDER : BORDER + width] = image
    shifts = range(2 * BORDER + 1)
    return [bordered[:, top : top + height, left : left + width] for top in shifts for left in shifts]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_each_image_becomes_one_of_its_crops(dtype: torch.dtype) -> None:
    images = pictures(200, dtype)
    changed = augment(images, "crop", seed=5)
    assert (changed.dtype, changed.shape) == (dtype, images.shape)
    used = set()
    for before, after in zip(images, changed, strict=True):
        (place,) = [at for at, crop in enumerate(every_crop(before)) if torch.equal(crop, after)]
        used.add(place)
    assert len(used) > 60  # of 81, all equally likely


def test_half_of_the_crops_are_mirrored() -> None:
    images = pictures(200)
    straight, mirrored = 0, 0
    for before, after in zip(images, augment(images, "crop+flip", seed=5), strict=True):
        straight += any(torch.equal(crop, after) for crop in every_crop(before))
        mirrored += any(torch.equal(crop.flip(2), after) for crop in every_crop(before))
    assert straight + mirrored == 200
    assert 80 <= mirrored <= 120


def test_it_is_a_function_of_the_seed_and_leaves_its_argument_and_torch_alone() -> None:
    images, state = pictures(20), torch.get_rng_state()
    before = images.clone()
    assert torch.equal(augment(images, "crop+flip", 3), augment(images, "crop+flip", 3))
    assert not torch.equal(augment(images, "crop+flip", 3), augment(images, "crop+flip", 4))
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_are_cut_out_with_their_targets_and_scale() -> None:
    examples = Examples(pictures(10), torch.arange(10), torch.ones(3), torch.zeros(3))
    batches = [torch.tensor([7, 2, 7]), torch.tensor([1])]
    found, places = augmented(examples, batches, "crop", [11, 12])
    assert [place.tolist() for place in places] == [[0, 1, 2], [3]]
    assert found.targets.tolist() == [7, 2, 7, 1]
    assert torch.equal(found.inputs[places[1]], augment(examples.inputs[batches[1]], "crop", 12))
    assert found.scale is examples.scale
    assert found.inputs.is_contiguous()  # or the native engine would refuse them


def federation() -> FederatedData:
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn(60, 1, 16, 16, generator=generator), torch.arange(60) % 3
    train, test = (inputs[:48], targets[:48]), (inputs[48:], targets[48:])
    return FederatedData.of(train, test, [range(0, 11), range(11, 30), range(30, 48)])


def trained(out: Path, said: list[str] | None = None, workers: Any = "inline", **changes: Any) -> Result:
    table = {
        "model": {"name": "lenet5"},
        "data": {"augment": "crop+flip"},
        "pacing": {"max_in_flight": 2},
        "local": {"batch": 4, "epochs": 2},
        "algorithm": {"name": "fedasmu"},
        "stop": {"uploads": 12},
        **changes,
    }
    heard = said if said is not None else []
    return Experiment(table, data=federation()).run(out, workers=workers, say=heard.append)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_bits_do_not_depend_on_the_workers(engine: str, tmp_path: Path) -> None:
    """FedASMU cuts its trainings in two and probes between them: a step's images must be the same each time."""
    said: list[str] = []
    once = trained(tmp_path / "1", said, engine=engine)
    assert outputs(trained(tmp_path / "2", engine=engine, workers=2)) == outputs(once)
    plain = trained(tmp_path / "3", engine=engine, data={})
    assert outputs(plain)["model.safetensors"] != outputs(once)["model.safetensors"]
    (line,) = [line for line in said if line.startswith("engine: ")]
    assert line.startswith(f"engine: {'native' if engine == 'native' else 'PyTorch'}")
    assert line.endswith("; fed with images altered by crop+flip")


def test_both_engines_see_the_same_images(tmp_path: Path) -> None:
    """Their sums differ in the last bits alone; other images would differ by far more."""
    native, torch_ = (trained(tmp_path / engine, engine=engine).curve["loss"] for engine in ("native", "torch"))
    assert list(native) == pytest.approx(list(torch_), rel=1e-4)


def test_only_images_can_be_altered(tmp_path: Path) -> None:
    table = {"data": {"augment": "crop"}, "algorithm": {"name": "fedavg"}}
    with pytest.raises(UserError, match=r"data.augment = 'crop': alters images, but the data are \(20,\)"):
        Experiment(table, model=softmax, data=blobs()).run(tmp_path)
