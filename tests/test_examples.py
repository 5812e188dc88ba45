"""Every file in examples/ runs, and shows what it says."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedasmu import Device, Experiment, FederatedData, Result
from helpers.repository import ROOT

EXAMPLES = ROOT / "examples"


def example(name: str, folder: Path) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](folder)


def test_every_example_is_listed_and_tested() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"own_data", "own_method", "measured_fleet", "sweep_to_table", "bare_fedasmu"}
    assert all(f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text() for name in names)


def test_the_example_for_flower_calls_what_there_is() -> None:
    """It is not run here, which would take Flower. What it asks of us must exist."""
    text = (EXAMPLES / "flower" / "launch" / "client_app.py").read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    (device,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Device"]
    given = {keyword.arg: None for keyword in device.keywords if keyword.arg}
    inspect.signature(Device).bind(*device.args, **given)
    pinned = (EXAMPLES / "flower" / "requirements.txt").read_text().splitlines()
    assert "flwr==1.41.0" in pinned
    assert '"flwr==1.41.0"' in (EXAMPLES / "flower" / "pyproject.toml").read_text()


def test_own_data(tmp_path: Path) -> None:
    result = example("own_data", tmp_path)
    assert result.config["fleet"]["devices"] == 12
    assert result.curve["accuracy"][-1] > max(0.75, result.curve["accuracy"][0])


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = example("own_method", tmp_path)
    assert all(one.curve["accuracy"][-1] > one.curve["accuracy"][0] + 0.2 for one in results.values())
    staleness = {line["staleness"] for line in results["gentle"].events if line["event"] == "upload"}
    assert len(staleness) > 1


def test_measured_fleet(tmp_path: Path) -> None:
    results = example("measured_fleet", tmp_path)
    assert results["fedasync"].summary["mean_staleness"] > 1.5
    assert results["fedasync"].summary["virtual_seconds"] < results["fedavg"].summary["virtual_seconds"]


def test_sweep_to_table(tmp_path: Path) -> None:
    best, table = example("sweep_to_table", tmp_path)
    assert best == {"fedasync": ["local.lr=0.1"], "fedavg": ["local.lr=0.1"]}
    for method in best:
        for seed in (1, 2):
            assert Result(tmp_path / "compare" / method / f"seed-{seed}").config["local"]["lr"] == 0.1
    assert re.search(r"FedAsync & .*\d\d\.\d \$\\pm\$ .*\\\\\nFedAvg & ", table)


def test_the_framework_does_what_the_bare_equations_do(tmp_path: Path) -> None:
    """The same tiny problem, once in a hundred lines of numpy and once through all of the framework."""
    bare = runpy.run_path(str(EXAMPLES / "bare_fedasmu.py"))
    oracle = bare["main"](60)
    devices, *test = bare["problem"]()
    inputs, targets = (np.concatenate([getattr(one, name) for one in devices]) for name in ("inputs", "targets"))
    count, size = len(devices), bare["EXAMPLES"]
    shards = np.arange(count * size).reshape(count, size).tolist()
    lines = [f"{place},{one.seconds},1e12,1e12,0" for place, one in enumerate(devices)]
    (tmp_path / "fleet.csv").write_text("\n".join(["device,seconds_per_sample,down_mbps,up_mbps,latency", *lines]))
    learned = {f"lr_{name}": bare["LEARN"] for name in ("lambda", "sigma", "iota", "gamma", "upsilon")}
    exact = {"guards": False, "record": "float32", "slots": "fixed", "fixed_slot": bare["SLOT"]}
    settings = {
        "algorithm": {"name": "fedasmu", **learned, **exact},
        "fleet": {"devices": count, "profiles": str(tmp_path / "fleet.csv")},
        "pacing": {"period": bare["PERIOD"], "count": count, "max_in_flight": count},
        "local": {"loss": "mse", "batch": size, "epochs": bare["STEPS"], "lr": bare["RATE"], "decay": 1.0},
        "evaluate": {"metric": "rmse"},
        "stop": {"uploads": 60},
    }
    data = FederatedData.of((inputs, targets), tuple(test), shards)
    zero = {"weight": torch.zeros(1, 3)}
    model = partial(nn.Linear, 3, 1, bias=False)
    result = Experiment(settings, model=model, data=data, weights=zero).run(tmp_path / "run")
    np.testing.assert_allclose(result.state_dict["weight"].numpy()[0], oracle.w, rtol=1e-5, atol=1e-6)
    uploads = [line for line in result.events if line["event"] == "upload"]
    assert len({line["staleness"] for line in uploads}) > 2, "asynchronous"
    assert sum(line.get("beta") is not None for line in uploads) > 30, "and merging"
    last = {line["device"]: line["gamma"] for line in uploads if line.get("gamma") is not None}
    assert any(abs(gamma - bare["GAMMA"]) > 1e-3 for gamma in last.values()), "what is learned has moved"
