"""AsyncDrop trains true sub-networks, and MOON compares the right features."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu import Experiment
from fedasmu.algorithms.asyncdrop import method as asyncdrop
from fedasmu.algorithms.asyncdrop.method import MergeSubnetwork, merge, random_units, scored_units
from fedasmu.algorithms.asyncdrop.subnetwork import hidden_layers, mask_of, work_share
from fedasmu.events import Event, Measured, Renewed
from fedasmu.models import build
from fedasmu.models.contrast import Contrast, contrastive
from fedasmu.server.desk import Desk
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, network, settings


def masked(module: nn.Module, keep: float, spare: int = 1) -> tuple[Layout, Tensor]:
    layout = Layout.of(module)
    hidden = hidden_layers(layout, spare)
    return layout, mask_of(layout, hidden, [random_units(each.units, round(keep * each.units), 1) for each in hidden])


def view(layout: Layout, mask: Tensor, name: str) -> Tensor:
    return next(entry.view(mask) for entry in (*layout.parameters, *layout.buffers) if entry.name == name)


def load(module: nn.Module, layout: Layout, vector: Tensor) -> nn.Module:
    module.load_state_dict(layout.tensors(vector), strict=False)
    return module.eval()


def test_merge_touches_the_sub_network_alone() -> None:
    current, trained = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([3.0, 0.0, -1.0])
    assert merge(current, trained, torch.tensor([True, False, True]), 0.25).tolist() == [1.5, -2.0, 2.0]


def test_units_are_chosen_by_score_and_speed() -> None:
    scores = torch.tensor([0.5, 3.0, 0.0, 2.0, 1.0, 2.5])  # by descending score: 1, 5, 3, 4, 0, 2
    assert scored_units(scores, 2, rank=0, devices=3) == [1, 5]
    assert scored_units(scores, 2, rank=1, devices=3) == [3, 4]
    assert scored_units(scores, 3, rank=2, devices=3) == [0, 1, 2]  # round the corner
    assert len(set(random_units(10, 4, seed=1))) == 4


def test_a_units_score_is_what_goes_in_and_out() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    (layer,) = hidden_layers(layout, spare=1)
    change = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 100.0, 200.0, 7.0])  # rows, biases, columns, last bias
    assert layer.score(change).tolist() == [113.0, 227.0]


def test_lenet_loses_whole_filters_and_what_they_feed() -> None:
    layout, mask = masked(build("lenet5", shape=(1, 28, 28), classes=10, seed=0), keep=0.25)
    assert view(layout, mask, "0.weight").all()  # the first layer is spared
    assert view(layout, mask, "11.bias").all()  # and the classes stay
    filters = view(layout, mask, "3.weight").flatten(1)
    kept = filters.all(1)
    assert int(kept.sum()) == 4  # of 16
    assert torch.equal(kept, filters.any(1))
    assert torch.equal(kept, view(layout, mask, "3.bias"))
    columns = view(layout, mask, "7.weight").view(120, 16, 16)  # each filter feeds 4 x 4 columns
    assert torch.equal(columns.any(2).any(0), kept)
    assert int(view(layout, mask, "7.weight").sum()) == 30 * 4 * 16
    shares = [1, 4 / 16, 4 / 16 * 30 / 120, 30 / 120 * 21 / 84, 21 / 84]
    assert work_share(layout, mask) == pytest.approx(sum(shares) / 5)


def test_the_masked_network_is_the_smaller_network() -> None:
    """The same outputs as a network that never had the dropped units."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    layout, mask = masked(whole, keep=0.5)
    vector = torch.randn(layout.size).abs()
    kept = view(layout, mask, "0.bias").nonzero().flatten()
    assert len(kept) == 4
    small = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    tensors = layout.tensors(vector)
    small.load_state_dict(
        {
            name: value[:, kept] if name == "3.weight" else value[kept]
            for name, value in tensors.items()
            if name != "3.bias"
        }
        | {"3.bias": tensors["3.bias"]},
        strict=False,
    )
    inputs = torch.randn(5, 6)
    assert torch.allclose(load(whole, layout, vector * mask)(inputs), small.eval()(inputs), atol=1e-5)


def test_a_resnet_keeps_what_its_shortcuts_go_around() -> None:
    layout, mask = masked(build("resnet20", shape=(3, 32, 32), classes=10, seed=0), keep=0.25, spare=0)
    inner = view(layout, mask, "3.residual.0.weight").flatten(1).all(1)
    assert int(inner.sum()) == 4  # of 16
    assert torch.equal(inner, view(layout, mask, "3.residual.1.running_mean"))
    assert torch.equal(inner, view(layout, mask, "3.residual.3.weight")[0].flatten(1).all(1))
    assert view(layout, mask, "3.residual.4.bias").all()  # the stream that the shortcut joins
    assert view(layout, mask, "0.weight").all()


def test_parallel_branches_lose_their_rows_alone() -> None:
    layout, mask = masked(build("textcnn", shape=(20,), classes=2, seed=0, vocabulary=50), keep=0.5)
    assert view(layout, mask, "words.weight").all()
    rows = view(layout, mask, "windows.1.0.weight").flatten(1)
    assert int(rows.all(1).sum()) == 50
    assert torch.equal(rows.all(1), rows.any(1))
    assert view(layout, mask, "classifier.weight").all()


@pytest.mark.parametrize("choice", ["score", "random"])
def test_a_task_changes_only_its_sub_network(choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    masks: list[Tensor] = []

    class Watched(MergeSubnetwork):
        def brief(self, device: int) -> Mapping[str, Any]:
            note = super().brief(device)
            masks.append(note["mask"])
            return note

    def look(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Renewed):
            seen.append((desk.server.model.vector, masks[-1]))

    monkeypatch.setattr(asyncdrop, "MergeSubnetwork", Watched)
    pacing, algorithm = {"max_in_flight": 1}, {"name": "asyncdrop", "choice": choice}
    table = settings(algorithm=algorithm, local={"batch": 15}, stop={"uploads": 4}, pacing=pacing)
    Experiment(table, model=network, data=blobs()).run(tmp_path / "drop", observe=look)
    assert len(seen) == 4
    for (before, _), (after, mask) in pairwise(seen):
        assert (~mask).sum() == 6 * (20 + 5 + 2)  # units; each has weights, a bias, BatchNorm's four, and columns
        assert torch.equal(before[~mask], after[~mask])
        assert (before[mask] != after[mask]).float().mean() > 0.8  # a unit may be dead


def test_a_sub_network_costs_less_time_and_fewer_bytes(run: Run) -> None:
    def summary(**changes: Any) -> Any:
        return run(model=network, local={"batch": 15}, algorithm={"name": "asyncdrop", **changes}).summary

    whole, quarter = summary(keep=1.0), summary(keep=0.25)
    assert quarter["bytes_up"] < 0.5 * whole["bytes_up"]
    assert quarter["virtual_seconds"] < whole["virtual_seconds"]
    assert summary(keep=0.25, time_factor=1.0)["virtual_seconds"] > quarter["virtual_seconds"]


def test_contrast_sees_each_model_under_its_own_weights() -> None:
    torch.manual_seed(0)
    module = network()
    layout = Layout.of(module)
    now, received, previous = (torch.randn(layout.size).abs() for _ in range(3))
    inputs, targets = torch.randn(7, 20), torch.arange(7) % 2

    def features(vector: Tensor) -> Tensor:
        inner: Tensor = load(network(), layout, vector)[:3](inputs)  # type: ignore[index]
        return inner.detach()

    module.load_state_dict(layout.tensors(now), strict=False)
    before = layout.read(module)
    objective = Contrast(received, previous, mu=2.0, temperature=0.5)
    loss = objective(module.train(), inputs, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in module.parameters())
    trainable = layout.trainable
    assert torch.equal(layout.read(module)[:trainable], before[:trainable])  # nothing was left behind in the module
    module.load_state_dict(layout.tensors(now), strict=False)
    own: Tensor = module.train()[:3](inputs)  # type: ignore[index]
    expected = cross_entropy(module[3](own), targets)  # type: ignore[index]
    expected = expected + 2.0 * contrastive(own, features(received), features(previous), 0.5)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
