"""What the system refuses is one message, one process works in a run directory, and runs that cannot end say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu import Experiment, Result
from fedasmu.errors import UserError, is_refusal, refusal
from fedasmu.simulation import patience
from fedasmu.system.lock import LOCK, locked
from helpers.blobs import blobs, outputs, settings, softmax
from helpers.repository import ROOT

RECIPE = """
model = "softmax"
checkpoint_seconds = 1e-9
data = {name = "fashion-mnist-small"}
fleet = {devices = 20}
algorithm = "ca2fl"
stop = {uploads = 30}
"""


def fedasmu(place: Path, *arguments: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a shell, with its limits. It is not measured: what measures would write below them too."""
    line = f"{before} exec {sys.executable} -m fedasmu {' '.join(arguments)} {after}"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environment = {**outside, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(["sh", "-c", line], cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


def test_a_file_that_may_not_grow_is_one_message_and_nothing_is_lost(place: Path) -> None:
    run = ("run", "r.toml", "--workers", "inline", "--set", "stop.uploads=12", "--out")
    whole = fedasmu(place, *run, "whole", "--set", "checkpoint_seconds=1e9")
    assert whole.returncode == 0, whole.stderr
    done = fedasmu(place, *run, "cut", before="ulimit -f 40;")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "the run cannot go on: cut" in done.stderr
    assert "File too large" in done.stderr
    assert "Go on with: fedasmu resume cut" in done.stderr
    done = fedasmu(place, "run", "--resume", "cut", "--workers", "inline")
    assert done.returncode == 0, done.stderr
    assert outputs(Result(place / "cut")) == outputs(Result(place / "whole"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output(tmp_path: Path) -> None:
    done = fedasmu(tmp_path, "list", "keys", after="> /dev/full")
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_too_few_descriptors(place: Path) -> None:
    done = fedasmu(place, "run", "r.toml", "--workers", "4", "--out", "run", before="ulimit -n 12;")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr


def test_what_has_no_class_of_its_own_is_known_as_a_refusal() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_refusal(raised.value)
    assert refusal(raised.value).startswith("out of memory: ")
    assert is_refusal(RuntimeError("can't start new thread"))
    assert not is_refusal(RuntimeError("a method's own"))


def test_the_words_for_a_refusal() -> None:
    assert refusal(OSError(28, "No space left on device"), "runs/x") == "runs/x: No space left on device"
    assert refusal(OSError(28, "No space left on device", "a/file"), "runs/x") == "a/file: No space left on device"
    assert refusal(MemoryError()) == "out of memory"
    assert "no further process or thread" in refusal(OSError(11, "Resource temporarily unavailable"), "runs/x")


# --- one process at a time


def experiment(**changes: Any) -> Experiment:
    return Experiment(settings(stop={"uploads": 12}, **changes), model=softmax, data=blobs())


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A run directory in which another process works, and its id."""
    run = tmp_path / "run"
    experiment().run(run)
    code = f"from fedasmu.system.lock import locked\nfrom pathlib import Path\nwith locked(Path({str(run)!r})):\n"
    line = [sys.executable, "-c", code + " print('held', flush=True)\n input()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield run, other.pid
        other.kill()


def test_a_directory_in_use_is_neither_resumed_nor_replaced(busy: tuple[Path, int]) -> None:
    run, pid = busy
    (run / "summary.json").unlink()
    before = outputs(Result(run))
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match=rf"another process \(pid {pid}\) is working on it"):
            experiment().run(run, **how)  # type: ignore[arg-type]
    assert outputs(Result(run)) == before


def test_a_lock_that_was_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).write_text("4711\n")
    (tmp_path / "run" / "config.toml.part").write_text("na")
    assert experiment().run(tmp_path / "run").summary["uploads"] == 12
    assert (tmp_path / "run" / LOCK).read_text() == f"{os.getpid()}\n"


def test_one_process_does_not_let_itself_in_twice(tmp_path: Path) -> None:
    twice = pytest.raises(UserError, match="this process is working on it already")
    with locked(tmp_path), twice, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_what_began_meanwhile_or_is_of_our_names_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    whole = outputs(experiment().run(run))
    (run / "config.toml").unlink()
    with pytest.raises(UserError, match="something already"):
        experiment().run(run)
    assert outputs(experiment().run(run, overwrite=True)) == whole
    (run / "config.toml").unlink()
    (run / "my-thesis.tex").write_text("")
    with pytest.raises(UserError, match="not a run directory"):
        experiment().run(run, overwrite=True)


def test_the_recipe_is_there_first_and_the_fleet_is_made_good(tmp_path: Path) -> None:
    """A run killed right after its first file can be resumed, and ends like any other."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    expected = outputs(experiment().run(whole))
    run.mkdir()
    shutil.copy(whole / "config.toml", run)
    again = Experiment.of_run(run, model=softmax, data=blobs())
    assert outputs(again.run(run, resume=True)) == expected
    assert (run / "fleet.csv").read_bytes() == (whole / "fleet.csv").read_bytes()


# --- runs that cannot end


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ({"availability": 0.01, "cycle": 0.1}, r"there for 0.001 s at a time"),
        ({"seconds_per_sample": 1e300}, "on the fastest device: no run would end"),
        ({"latency": 1e308}, "on the fastest device: no run would end"),
        ({"up_mbps": 1e-300}, "on the fastest device: no run would end"),
    ],
)
def test_a_fleet_that_never_delivers_is_refused(fleet: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        experiment(fleet=fleet).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_trace_of_other_devices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("device,start,end\n99,0,1e300\n")
    with pytest.raises(UserError, match="none of the fleet's 10 devices is in it"):
        experiment(fleet={"trace": str(tmp_path / "t.csv")}).run(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleet": {"dropout": 0.999999}}, "50 tasks in a row were lost"),
        ({"fleet": {"availability": 0.02, "cycle": 10.0}}, "in a row"),
        ({"pacing": {"period": 1e-9}}, "nothing was delivered during 500 periods"),
    ],
)
def test_a_run_that_does_not_get_on_ends_with_a_reason(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TICKS", 500)
    monkeypatch.setattr(patience, "LOSSES", 50)
    with pytest.raises(UserError, match=message):
        experiment(**changes).run(tmp_path / "run")


# --- what a file may say


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("r.toml", "seed = " + "9" * 5000, ""),
        ("r.toml", "x = " + "[" * 5000 + "]" * 5000, ""),
        ("p.json", "[" * 100_000, "fleet.profiles"),
        ("p.json", '[{"device": Infinity}]', "fleet.profiles"),
        (
            "p.json",
            '[{"seconds_per_sample": 1, "down_mbps": 1, "up_mbps": 1, "latency": 1' + "0" * 400 + "}]",
            "fleet.profiles",
        ),
        ("t.json", '[{"device": Infinity, "start": 0, "end": 1}]', "fleet.trace"),
        ("t.json", '[{"device": 0, "start": 0, "end": 1' + "0" * 5000 + "}]", "fleet.trace"),
    ],
)
def test_numbers_and_brackets_without_end(name: str, text: str, key: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    recipe = [f"{key}={tmp_path / name}"] if key else []
    with pytest.raises(UserError, match=name):
        Experiment.from_toml("quickstart" if key else tmp_path / name, recipe).run(tmp_path / "run")


def test_overrides_without_end(tmp_path: Path) -> None:
    for text in ("seed=" + "9" * 5000, "seed=" + "[" * 5000 + "]" * 5000):
        with pytest.raises(UserError, match="seed"):
            Experiment.from_toml("quickstart", [text])
