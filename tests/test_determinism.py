"""The same seed gives the same bytes: on any number of workers, and however often the run was killed and resumed."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedasmu import Experiment, Result
from fedasmu.algorithms.base import Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedasync import FedAsync, Mix
from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.events import Delivered, Event, Measured
from fedasmu.protocol import Fetch, Memory, Poll, Probe, Report, Session, Task, Train, Workload
from fedasmu.schedule import Periodic
from fedasmu.server.desk import Desk
from fedasmu.simulation.device import Device
from fedasmu.storage import checkpoint
from helpers.blobs import Run, blobs, outputs, settings, softmax
from helpers.repository import ROOT

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
RESTLESS = {"jitter": 0.3, "dropout": 0.15, "availability": 0.8, "cycle": 40.0}
PAUSE = "FEDASMU_TEST_PAUSE"  # seconds for each version: so that a run is still at work when it is seen to be


class CuriousLearner(Learner):
    """Everything that a session may do: trains in pieces, probes, asks twice, polls, and remembers tensors."""

    def train(self, task: Task, work: Workload, memory: Memory) -> Session:
        half = work.steps // 2
        trained = yield Train(task.model.vector, range(half), task.lr)
        before = yield Probe(trained.vector, half)
        fresh, vector = (yield Fetch()), trained.vector
        if fresh is not None:
            vector = torch.lerp(vector, fresh.vector, 0.5)
        again = yield Fetch()
        if again is not None:
            raise AssertionError("a task is answered once")
        gradient = (yield Probe(vector, half, gradient=True)).gradient
        pressed = yield Poll()
        last = memory.get("last", torch.zeros_like(vector))
        rest = yield Train(vector - 0.01 * gradient.norm() * last, range(half, work.steps), task.lr)
        memory["last"] = rest.vector - vector
        memory["seen"] = {**memory.get("seen", {}), task.id: (before.loss, pressed)}
        if len(memory["seen"]) > 3:
            memory.clear()
        return Report(rest.vector, work.examples, rest.loss, {"before": before.loss, "tasks": len(memory)})


class Curious(Algorithm):
    """Asynchronous mixing with a device half that uses every command."""

    kind = "asynchronous"
    name: str = "curious"
    max_staleness: int | None = 8

    @property
    def pull_beyond(self) -> int | None:
        return 6

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Several(FedAsync())

    def learner(self) -> Learner:
        return CuriousLearner()


class Several(Mix):
    """Mixes whatever has arrived, one upload after the other."""

    def aggregate(self, current: Any, uploads: Any) -> Any:
        time.sleep(float(os.environ.get(PAUSE, "0")))
        for upload in uploads:
            made = super().aggregate(current, [upload])
            current = type(current)(current.version, made.vector)
        return type(made)(current.vector, [made.weights[0]] * len(uploads))


def regularised() -> nn.Module:
    """Dropout and BatchNorm: random numbers and statistics to keep apart."""
    return nn.Sequential(
        nn.Linear(20, 8), nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2)
    )


LOCAL = {"batch": 15, "epochs": 3}  # BatchNorm cannot train on one example: no shard may leave a batch of one
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"local": LOCAL, "algorithm": {"name": "fedavg"}},
    "fedasync": {"local": LOCAL, "algorithm": {"name": "fedasync", "staleness": "hinge", "max_staleness": 6}},
    "curious": {"local": LOCAL, "algorithm": {"name": "test_determinism:Curious"}},
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_any_number_of_workers_gives_the_same_bytes(method: dict[str, Any], run: Run) -> None:
    expected = outputs(run("inline", model=regularised, fleet=RESTLESS, **method))
    assert len(expected["events.jsonl"]) > 1000
    for workers in (1, 2, 3):
        assert outputs(run(workers, model=regularised, fleet=RESTLESS, **method)) == expected, f"{workers} workers"


def test_the_native_engine_gives_the_same_bytes_on_any_number_of_workers(run: Run) -> None:
    expected = outputs(run("inline"))
    assert outputs(run(2)) == expected


def test_another_seed_gives_another_run(run: Run) -> None:
    one, other = outputs(run(seed=0)), outputs(run(seed=1))
    assert all(one[name] != other[name] for name in one)


def test_a_run_does_not_depend_on_what_ran_before_it(run: Run) -> None:
    first = outputs(run(model=regularised, local=LOCAL))
    torch.manual_seed(99)
    random.seed(99)
    run(model=regularised, local=LOCAL, seed=3)
    assert outputs(run(model=regularised, local=LOCAL)) == first


# --- killed and resumed


def an_experiment(method: str = "curious", **changes: Any) -> Experiment:
    table = settings(fleet=RESTLESS, stop={"uploads": 40}, **{**METHODS[method], "checkpoint_seconds": 1e-9, **changes})
    return Experiment(table, model=regularised, data=blobs())


WHOLE: dict[str, dict[str, bytes]] = {}


def whole(directory: Path, method: str = "curious") -> dict[str, bytes]:
    """What a run leaves behind that was never stopped."""
    if method not in WHOLE:
        WHOLE[method] = outputs(an_experiment(method, checkpoint_seconds=1e9).run(directory))
    return WHOLE[method]


def resume(directory: Path, workers: Any = "inline", **options: Any) -> Result:
    experiment = Experiment.of_run(directory, model=regularised, data=blobs(), allow_code=True)
    return experiment.run(directory, workers=workers, resume=True, **options)


def in_a_child(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


def die_at(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but its call of this number ends the process."""
    calls = 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return deadly


@pytest.mark.parametrize("method", METHODS)
def test_killed_again_and_again_while_it_writes(method: str, tmp_path: Path) -> None:
    """Every fsync, rename and removal of a checkpoint is a moment to die at; the run must crawl to the same end."""
    expected = whole(tmp_path / "whole", method)

    def attempt(first: bool, target: Any, name: str, calls: int) -> None:
        setattr(target, name, die_at(calls, getattr(target, name)))
        if first:
            an_experiment(method).run(tmp_path / "run")
        else:
            resume(tmp_path / "run")

    moments = [
        (os, "fsync", 9),  # of the first checkpoint: the settings are on the disk by then
        (Path, "rename", 7),
        (shutil, "rmtree", 40),
        (os, "fsync", 112),
        (shutil, "rmtree", 31),
    ]
    for number, moment in enumerate(moments):
        child = in_a_child(partial(attempt, number == 0, *moment))
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert not (tmp_path / "run" / "summary.json").exists()
    assert outputs(resume(tmp_path / "run")) == expected


def test_killed_at_random_moments_with_two_workers(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")

    def wait(desk: Desk, line: Event | Measured) -> None:
        if desk.server.counters.received == 39:
            signal.pause()  # however late the process that kills it is

    child = in_a_child(lambda: an_experiment().run(tmp_path / "run", workers=2, observe=wait))
    wait_for((tmp_path / "run" / "checkpoint").exists)
    assert child.is_alive()
    for seconds in (0.0, 0.1, 0.25, 0.4, 0.15):
        child.join(seconds)
        child.kill()
        child.join()
        child = in_a_child(lambda: resume(tmp_path / "run", 2))
    child.join()
    assert outputs(resume(tmp_path / "run", 3)) == expected


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def interrupted(directory: Path, uploads: int, method: str = "curious", **changes: Any) -> None:
    """A run that was stopped by Ctrl-C after so many uploads."""

    def stop(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received == uploads:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        an_experiment(method, **changes).run(directory, observe=stop)


@pytest.mark.parametrize("uploads", [1, 17, 39])
def test_interrupted_and_resumed(uploads: int, tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    interrupted(tmp_path / "run", uploads, checkpoint_seconds=1e9)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert outputs(resume(tmp_path / "run")) == expected
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_interrupted_while_it_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole(tmp_path / "whole")
    interrupted(tmp_path / "run", 20)
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    replay, calls = Device.replay, []

    def once(self: Device, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) > 1:
            raise Interrupted
        replay(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Device, "replay", once)
        with pytest.raises(Interrupted):
            resume(tmp_path / "run")
    assert len(calls) == 2
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir()) == before
    assert outputs(resume(tmp_path / "run")) == expected


def test_an_observer_that_stops_a_run_does_so_after_the_event(tmp_path: Path) -> None:
    """At a line for the 30th upload, which is evaluated after that line is written."""

    def stop(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received == 30:
            raise Interrupted

    experiment = Experiment(settings(), model=softmax, data=blobs())
    with pytest.raises(Interrupted):
        experiment.run(tmp_path / "run", observe=stop)
    resumed = experiment.run(tmp_path / "run", resume=True)
    assert 30 in resumed.curve["uploads"]
    assert outputs(resumed) == outputs(experiment.run(tmp_path / "whole"))


def test_a_method_inside_a_function_is_resumed_from_where_it_is(tmp_path: Path) -> None:
    class Inner(FedAsync):
        """Nobody but this function can name it."""

    def experiment() -> Experiment:
        return Experiment(settings(algorithm=Inner(alpha=0.5), stop={"uploads": 30}), model=softmax, data=blobs())

    def stop(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received == 15:
            signal.raise_signal(signal.SIGINT)

    said: list[str] = []
    expected = outputs(experiment().run(tmp_path / "whole", say=said.append))
    assert any("stands inside a function: `fedasmu resume` will not find it" in one for one in said)
    with pytest.raises(Interrupted):
        experiment().run(tmp_path / "run", observe=stop)
    with pytest.raises(UserError, match=r"stands inside a function, where it is not found again; Experiment\(the same"):
        Experiment.of_run(tmp_path / "run", model=softmax, data=blobs(), allow_code=True)
    assert outputs(experiment().run(tmp_path / "run", resume=True)) == expected


def damage(path: Path) -> None:
    state = (path / "state.json").read_bytes()
    (path / "state.json").write_bytes(state[: len(state) // 2])


def checkpoints(run: Path) -> list[Path]:
    return sorted(path for path in (run / "checkpoint").iterdir() if path.name.isdigit())


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    interrupted(tmp_path / "run", 30)
    newest = checkpoints(tmp_path / "run")[-1]
    damage(newest)
    said: list[str] = []
    assert outputs(resume(tmp_path / "run", say=said.append)) == expected
    assert any("damaged checkpoint" in message and newest.name in message for message in said)


def test_when_all_checkpoints_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 30)
    for path in checkpoints(tmp_path / "run"):
        damage(path)
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    with pytest.raises(UserError, match="no checkpoint can be read"):
        resume(tmp_path / "run")
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_events_that_a_checkpoint_knows_of_must_be_there(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 30)
    (tmp_path / "run" / "events.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"events\.jsonl: not what the run had written"):
        resume(tmp_path / "run")


def test_a_run_without_a_checkpoint_starts_anew(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    interrupted(tmp_path / "run", 30)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert outputs(resume(tmp_path / "run")) == expected


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    result = an_experiment().run(tmp_path / "run")
    before = {path: path.read_bytes() for path in result.directory.iterdir() if path.is_file()}
    said: list[str] = []
    resume(tmp_path / "run", say=said.append)
    assert said == [f"{tmp_path / 'run'} is finished already"]
    assert {path: path.read_bytes() for path in result.directory.iterdir() if path.is_file()} == before


def test_checkpoints_hold_what_is_in_flight_and_not_the_fleet(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 35, "fedasync")
    state = checkpoint.read(checkpoints(tmp_path / "run")[-1])
    held = {task.model.version for task, *_ in state["desk"]["server"]["ledger"]}
    assert len(held) <= 5
    assert len(state["works"]) <= 5


@pytest.mark.parametrize("spoiled", [[], {}, {"desk": 3}, "server", "works"])
def test_a_checkpoint_with_something_missing_is_refused_in_a_sentence(tmp_path: Path, spoiled: Any) -> None:
    interrupted(tmp_path / "run", 10)
    (newest,) = checkpoints(tmp_path / "run")[-1:]
    state = checkpoint.read(newest)
    if isinstance(spoiled, str):
        del (state["desk"] if spoiled == "server" else state)[spoiled]
        spoiled = state
    checkpoint.write(spoiled, newest)
    with pytest.raises(UserError, match=r"its checkpoint does not (fit this run|say what run it is of)"):
        resume(tmp_path / "run")


def test_a_killed_worker_changes_nothing_but_what_is_said(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole")
    said: list[str] = []

    def kill(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received in (5, 20):
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    experiment = an_experiment(checkpoint_seconds=1e9)
    result = experiment.run(tmp_path / "run", workers=2, observe=kill, say=said.append)
    assert outputs(result) == expected


class Mortal(nn.Linear):
    """Takes its process with it while there is a file of this name."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and Path(os.environ["FEDASMU_TEST_DEATH"]).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


def test_a_computation_that_kills_its_workers_ends_the_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death = tmp_path / "death"
    monkeypatch.setenv("FEDASMU_TEST_DEATH", str(death))
    table = settings(engine="torch", stop={"uploads": 20}, checkpoint_seconds=1e9)
    experiment = Experiment(table, model=lambda: Mortal(20, 2), data=blobs())
    expected = outputs(experiment.run(tmp_path / "whole"))

    def kill(desk: Desk, line: Event | Measured) -> None:
        if desk.server.counters.received == 10:
            death.touch()

    with pytest.raises(DeviceError, match="for the second time"):
        experiment.run(tmp_path / "run", workers=2, observe=kill)
    death.unlink()
    (kept,) = checkpoints(tmp_path / "run")
    assert checkpoint.read(kept)["desk"]["server"]["counters"]["received"] >= 10
    assert outputs(experiment.run(tmp_path / "run", workers=2, resume=True)) == expected


# --- the same from the command line


def command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return [sys.executable, "-m", "fedasmu", *arguments], {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}


def recipe(directory: Path, checkpoint_seconds: float = 0.2) -> str:
    (directory / "recipe.toml").write_text(
        f"""
        model = "test_determinism:regularised"
        checkpoint_seconds = {checkpoint_seconds}
        [data]
        name = "fedasmu.conformance:blobs"
        [fleet]
        jitter = 0.3
        dropout = 0.15
        [pacing]
        period = 1.0
        max_in_flight = 5
        [local]
        epochs = 4
        batch = 15
        [algorithm]
        name = "test_determinism:Curious"
        [evaluate]
        every = 5
        [stop]
        uploads = 150
        """
    )
    return str(directory / "recipe.toml")


def start(*arguments: str, pause: str = "0.03", **options: Any) -> subprocess.Popen[str]:
    """The command in a process that minds every signal, even where the tests were started by nohup."""
    line, environment = command(*arguments)
    environment[PAUSE] = pause
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    minding = f"import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv({line[0]!r}, {line!r})"
    return subprocess.Popen([sys.executable, "-c", minding], env=environment, text=True, **streams, **options)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_killed_and_an_interrupted_command_end_in_the_same_bytes(tmp_path: Path) -> None:
    run, file = tmp_path / "run", recipe(tmp_path)
    expected = outputs(Experiment.from_toml(file, allow_code=True).run(tmp_path / "whole"))

    victim = start("run", file, "--allow-code", "--workers", "2", "--out", str(run))
    wait_for(lambda: lines(run / "metrics.csv") > 10)
    victim.kill()
    assert victim.wait() == -signal.SIGKILL

    reached = lines(run / "metrics.csv")
    stopped = start("run", "--resume", str(run), "--allow-code", "--workers", "2")
    wait_for(lambda: lines(run / "metrics.csv") > reached + 5)
    stopped.send_signal(signal.SIGINT)
    output = stopped.communicate()[0]
    assert stopped.returncode == 130, output
    assert f"fedasmu resume {run} --allow-code" in output
    assert "Traceback" not in output

    last = start("run", "--resume", str(run), "--allow-code", "--workers", "1", pause="0")
    output = last.communicate()[0]
    assert last.returncode == 0, output
    assert outputs(Result(run)) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_stops_the_run_with_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    """As systemd, slurm and a closing terminal do it."""
    run, file = tmp_path / "run", recipe(tmp_path, checkpoint_seconds=1000.0)
    stopped = start("run", file, "--allow-code", "--workers", "2", "--out", str(run), process_group=0)
    wait_for(lambda: lines(run / "metrics.csv") > 5)
    os.killpg(stopped.pid, number)
    output = stopped.communicate()[0]
    assert stopped.returncode == 130, output
    assert f"fedasmu resume {run}" in output
    assert len(checkpoints(run)) == 1
