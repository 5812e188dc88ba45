"""Where one method's settings make it another method, the runs are the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu import Experiment, Result
from fedasmu.algorithms import ALGORITHMS, CA2FL, FedBuff, FedDyn
from fedasmu.events import Event, Measured, Renewed
from fedasmu.server.desk import Desk
from helpers.blobs import Run, blobs, network, outputs, settings, softmax
from helpers.uploads import aggregated, federation, model, upload

BATCH = {"batch": 15}


def same(run: Run, one: dict[str, Any], other: dict[str, Any]) -> bool:
    return outputs(run(model=network, local=BATCH, algorithm=one)) == outputs(
        run(model=network, local=BATCH, algorithm=other)
    )


@pytest.mark.parametrize("name", ["fedprox", "moon"])
def test_without_their_term_fedprox_and_moon_are_fedavg(name: str, run: Run) -> None:
    assert same(run, {"name": name, "mu": 0.0}, {"name": "fedavg"})


def test_fedbuff_of_one_is_feddelay(run: Run) -> None:
    buffered = {"name": "fedbuff", "buffer": 1, "staleness": "constant", "server_lr": 0.3}
    assert same(run, buffered, {"name": "feddelay", "server_lr": 0.3, "tau_c": 1000})


def test_asyncdrop_that_keeps_everything_is_fedasync(run: Run) -> None:
    constant = {"name": "fedasync", "staleness": "constant", "alpha": 0.5, "rho": 0.0}
    assert same(run, {"name": "asyncdrop", "keep": 1.0}, constant)


def test_fedfa_with_a_window_of_one_is_fedasync_where_the_last_writer_wins(run: Run) -> None:
    constant = {"name": "fedasync", "staleness": "constant", "alpha": 1.0, "rho": 0.0}
    assert same(run, {"name": "fedfa", "window": 1}, constant)


def test_areas_model_is_the_mean_of_every_devices_last_one(tmp_path: Path) -> None:
    def check(desk: Desk, line: Event | Measured) -> None:
        if not isinstance(line, Renewed):
            return
        aggregator: Any = desk.server.aggregator
        last = [aggregator.federation.shelf.get(device) for device in range(10)]
        mean = torch.stack([aggregator.initial if each is None else each for each in last]).mean(0)
        assert torch.allclose(desk.server.model.vector, mean, atol=1e-6)

    Experiment(settings(algorithm={"name": "area"}), model=softmax, data=blobs()).run(tmp_path / "area", observe=check)


def test_feddyn_without_regulariser(run: Run, tmp_path: Path) -> None:
    """Its devices train as FedAvg's do, and its first step is mean_S + (|S| / m) (mean_S - w_0)."""
    dynamic, plain = (
        [event["loss"] for event in run(algorithm=algorithm, stop={"uploads": 5}).events if event["event"] == "upload"]
        for algorithm in ({"name": "feddyn", "alpha": 0.0}, {"name": "fedavg"})
    )
    assert dynamic == plain
    w0 = model(0, 1, -2)
    uploads = [upload(w0, 3, -1), upload(w0, -1, -4, device=1), upload(w0, 0.5, 2, device=3)]
    mean = torch.stack([each.report.vector for each in uploads]).mean(0)
    stepped = aggregated(FedDyn(alpha=0.0).aggregator(federation(tmp_path)), w0, *uploads)
    assert torch.allclose(stepped.vector, mean + 3 / 4 * (mean - w0.vector))


def test_ca2fl_of_the_whole_fleet_is_fedbuff(tmp_path: Path) -> None:
    calibrated = CA2FL(buffer=4).aggregator(federation(tmp_path))
    buffered = FedBuff(buffer=4, staleness="constant").aggregator(federation(tmp_path))
    one = other = model(0, 1, -2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        moves = torch.randn(4, 2, generator=generator)
        one = aggregated(calibrated, one, *(upload(one, *(one.vector + moves[i]).tolist(), device=i) for i in range(4)))
        other = aggregated(buffered, other, *(upload(other, *(other.vector + moves[i]).tolist()) for i in range(4)))
        assert torch.allclose(one.vector, other.vector, atol=1e-6)


def test_all_asynchronous_methods_live_through_the_same_events(run: Run) -> None:
    """With a network that has nothing to drop. FedASMU's fetches and FedSA's long trainings take time of their own."""

    def trace(result: Result) -> list[tuple[float, str, int]]:
        return [(event["time"], event["event"], event["device"]) for event in result.events if "device" in event]

    names = [method.names()[0] for method in ALGORITHMS if method.kind != "synchronous"]
    plain = [name for name in names if name not in ("fedasmu", "fedasmu-r", "fedsa", "port", "fedsa-semi")]
    first, *others = (trace(run(algorithm={"name": name})) for name in plain)
    assert all(other == first for other in others)


@pytest.mark.parametrize("epochs", [1, 4])
def test_port_calls_devices_in(epochs: int, run: Run) -> None:
    def steps(**changes: Any) -> set[tuple[int, int]]:
        fleet = {"slowest_over_fastest": 30.0}
        algorithm = {"name": "port", "minimum": 2, "bound": 1, **changes}
        result = run(algorithm=algorithm, fleet=fleet, local={"epochs": epochs})
        return {(event["device"], event["steps"]) for event in result.events if event["event"] == "upload"}

    whole = dict(steps(urgent=False))
    assert any(done < whole[device] for device, done in steps())
    assert len(whole) == len(steps(urgent=False)), "whoever is not called in does all steps"


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "area", "buffer": 3},
        {"name": "asofed", "recursion": "step"},
        {"name": "asyncdrop", "choice": "random"},
        {"name": "fadas", "server_lr": 0.05, "bias_correction": True, "adaptive": False},
        {"name": "fedbuff", "momentum": 0.5, "server_lr": 0.5},
        {"name": "feddelay", "large_delay": "drop"},
        {"name": "fedfa", "form": "delta"},
    ],
    ids=str,
)
def test_other_settings_learn_too(algorithm: dict[str, Any], run: Run) -> None:
    assert run(model=network, local=BATCH, algorithm=algorithm).curve["accuracy"][-1] > 0.8
    assert run(model=network, algorithm=algorithm, timing_only=True).summary["uploads"] == 60
