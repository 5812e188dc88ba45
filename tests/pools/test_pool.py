"""Who computes makes no difference to the answers, and a failure says whose it was."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedasmu import Experiment, pools
from fedasmu.engines.contract import native_engine
from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.pools import Inline, Job, Pool, Site, timing_only
from fedasmu.pools.crew import Crew
from fedasmu.pools.forked import Forked
from fedasmu.pools.worker import Worker
from fedasmu.protocol import Computation, Evaluate, Evaluated, Model, Probe, Probed, Train, Trained
from fedasmu.server.core import Counters
from fedasmu.server.meter import Meter
from fedasmu.storage import checkpoint, failure
from fedasmu.training import Trainer
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, outputs, settings, softmax
from helpers.uploads import trained

GIVES_UP = {14: SystemExit(3), 15: KeyboardInterrupt()}
DIED, GATE = mmap.mmap(-1, 1), mmap.mmap(-1, 1)  # shared with the worker processes


def perform(command: Any, device: int, seed: int) -> Any:
    """Stands in for training: fails on device 13, takes its time on device 50, dies on device 66, on 77 once.

    On device 51 it takes until a test opens the gate, however slow the machine is.
    """
    if device == 13:
        raise RuntimeError("an unlucky device")
    if device in GIVES_UP:
        raise GIVES_UP[device]
    if device == 50:
        time.sleep(0.2)
    while device == 51 and not GATE[0]:
        time.sleep(0.001)
    if device == 66 or (device == 77 and not DIED[0]):
        DIED[0] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(command, Evaluate):
        return Evaluated(float(os.getpid()), 0.5)
    return Trained(command.vector * 2 + seed, float(device))


def job(device: int = 0, vector: Tensor | None = None, **changes: Any) -> Job:
    start = torch.arange(4.0) if vector is None else vector
    return Job(Train(start, range(3), 0.1, **changes), device, task=device, seed=device + 100)


def opened(line: str) -> None:
    """To be told that somebody waits: by then all is submitted that a test submits."""
    GATE[0] = 1


MakePool = Callable[..., Crew]


@pytest.fixture
def processes() -> Iterator[MakePool]:
    made: list[Crew] = []
    GATE[0] = 0

    def make(workers: int = 2, vector_bytes: int = 16, **options: Any) -> Crew:
        options = {"computes_here": False, **options}
        made.append(pools.processes(Site(perform, vector_bytes, **options), workers))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def team(pool: Crew) -> list[Worker]:
    assert isinstance(pool.workers, Forked)
    return pool.workers.team


def test_the_same_answers_inline_and_in_processes() -> None:
    module = softmax()
    layout = Layout.of(module)
    start = layout.read(module)
    trainer = Trainer(module, layout, blobs(), 8, 2)
    commands: list[Computation] = [
        Train(start, range(7), 0.1, pull=0.3, anchor=start + 1, mask=(start > 0).float()),
        Probe(start, 2),
        Probe(start, 1, gradient=True),
        Evaluate(start),
    ]
    both: list[Pool] = [Inline(trainer.perform), pools.processes(Site(trainer.perform, layout.bytes), 2)]
    answers = []
    for pool in both:
        tickets = [pool.submit(Job(command, 3, 0, 77), 0.0) for command in commands]
        answers.append([pool.result(ticket) for ticket in reversed(tickets)])
        pool.close()
    for inline, process in zip(*answers, strict=True):
        assert type(inline) is type(process)
        for name in inline.__slots__:
            one, other = getattr(inline, name), getattr(process, name)
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_pickled_trainer_gives_the_same_answers(engine: str) -> None:
    module = softmax()
    layout = Layout.of(module)
    start = layout.read(module)
    network, _ = native_engine(engine, module, layout, (20,), 8, "cpu")
    trainer = Trainer(module, layout, blobs(), 8, 2, native=network)
    command = Train(start, range(7), 0.1)
    expected = trained(trainer.perform(command, 3, 77))  # also makes what must not be pickled
    answer = pickle.loads(pickle.dumps(trainer.perform))(command, 3, 77)
    assert torch.equal(answer.vector, expected.vector)
    assert answer.loss == expected.loss


def test_a_run_takes_a_pool_of_ones_own(run: Run) -> None:
    sites: list[Site] = []

    def borrowed(site: Site) -> Pool:
        sites.append(site)
        return Inline(site.perform)

    result = run(borrowed)
    assert len(sites) == 1
    assert result.summary["workers"] == "borrowed"
    assert outputs(result) == outputs(run("inline"))


@pytest.mark.parametrize("workers", [0, -1, "many", 1.5, None])
def test_workers_that_nobody_can_make_are_refused(workers: Any, run: Run) -> None:
    with pytest.raises(UserError, match=r"workers = .*: must be 1 or more, inline, or ray"):
        run(workers)


def test_models_travel_through_shared_memory_and_back(processes: MakePool) -> None:
    pool = processes(2, vector_bytes=40_000)
    model = torch.randn(10_000)
    tickets = [pool.submit(job(device, vector=model), float(device)) for device in range(9)]
    answers = [trained(pool.result(ticket)) for ticket in tickets]
    for device, answer in enumerate(answers):
        assert torch.equal(answer.vector, model * 2 + (device + 100))
    again = trained(pool.result(pool.submit(job(1, vector=answers[0].vector[:5000]), 0.0)))
    assert torch.equal(again.vector, answers[0].vector[:5000] * 2 + 101)
    assert isinstance(pool.workers, Forked)
    assert (
        pool.workers.arena._slots <= len(tickets) + 6
    )  # the model, the answers, and what the workers were given ahead


def test_models_larger_than_the_shared_lane_still_travel(processes: MakePool) -> None:
    pool = processes(1)
    large = torch.randn(100_000)
    answer = pool.result(pool.submit(job(5, vector=large), 0.0))
    assert isinstance(answer, Trained)
    assert torch.equal(answer.vector, large * 2 + 105)


def test_an_answer_is_not_overwritten_by_the_next_one(processes: MakePool) -> None:
    pool = processes(1)
    tickets = [pool.submit(job(device), 0.0) for device in (0, 1, 2)]
    answers = [pool.result(ticket) for ticket in tickets]
    assert [answer.vector[0].item() for answer in answers if isinstance(answer, Trained)] == [100, 101, 102]


def test_workers_take_what_is_needed_first(processes: MakePool) -> None:
    pool = processes(1)
    busy = pool.submit(job(51), 0.0)  # occupies the only worker while the others are queued
    late, soon = pool.submit(job(4), 20.0), pool.submit(job(4), 10.0)
    GATE[0] = 1
    pool.result(busy)
    while not (pool.ready(soon) and pool.ready(late)):
        pass
    assert list(pool._done) == [soon, late]


def test_what_is_waited_for_overtakes_the_queue(processes: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedasmu.pools.contract.PATIENCE", 0.0)
    pool = processes(1, say=opened)
    pool.submit(job(51), 0.0)
    tickets = [pool.submit(job(4), float(number)) for number in range(1, 6)]
    pool.result(tickets[-1])
    assert sum(ticket in pool._done for ticket in tickets[:-1]) <= 1  # which the worker had been given ahead


def test_two_workers_work_side_by_side(processes: MakePool) -> None:
    pool = processes(2)
    tickets = [pool.submit(Job(Evaluate(torch.zeros(1)), 51, 0, 0), 0.0) for _ in range(2)]
    GATE[0] = 1
    answers = [pool.result(ticket) for ticket in tickets]
    assert len({answer.loss for answer in answers if isinstance(answer, Evaluated)}) == 2  # two process ids


def test_a_worker_has_its_next_computation_before_it_has_ended_the_last(processes: MakePool) -> None:
    pool = processes(2)
    for number in range(7):
        pool.submit(job(51), float(number))
    assert [len(worker.given) for worker in team(pool)] == [2, 2]
    assert len(pool._backlog) == 3
    for worker in list(team(pool)):
        os.kill(worker.process.pid or 0, signal.SIGKILL)
    GATE[0] = 1
    assert isinstance(pool.result(7), Trained)


def test_what_takes_nothing_is_not_handed_over(processes: MakePool) -> None:
    pool = processes(1, computes_here=True)
    tickets = []
    for _ in range(60):
        tickets.append(pool.submit(job(4), 0.0))
        assert isinstance(pool.result(tickets[-1]), Trained)
    assert any(ticket < 0 for ticket in tickets)
    ticket = pool.submit(job(13), 0.0)
    with pytest.raises(DeviceError, match="an unlucky device"):
        pool.result(ticket)


def test_what_has_become_long_is_handed_over_again(processes: MakePool) -> None:
    """Also what is done in this process tells what it takes."""
    pool = processes(1, computes_here=True)
    for _ in range(100):
        pool._costs.handed(0.01)
        pool._costs.cheaper_here(job().command)
    pool._costs.computed(Train, 0.09)
    before = pool._costs.computing[Train]
    ticket = pool.submit(job(), 0.0)
    assert ticket < 0
    pool.result(ticket)
    assert pool._costs.computing[Train] < before
    pool._costs.computed(Train, 1.0)
    assert pool.submit(job(), 0.0) > 0


def test_an_unwanted_result_is_dropped(processes: MakePool) -> None:
    pool = processes(1)
    running, queued = pool.submit(job(50), 0.0), pool.submit(job(13), 1.0)
    pool.cancel(queued)
    pool.cancel(running)
    answer = pool.result(pool.submit(job(4), 2.0))
    assert isinstance(answer, Trained)
    assert answer.loss == 4
    assert not len(pool._backlog)
    assert not pool._done
    assert not pool._unwanted


def test_an_unwanted_failure_is_nobodys(processes: MakePool) -> None:
    pool = processes(1)
    running = pool.submit(job(13), 0.0)
    pool.cancel(running)
    assert isinstance(pool.result(pool.submit(job(4), 2.0)), Trained)


def test_cancelled_inline_work_is_never_done() -> None:
    pool = Inline(perform)
    pool.cancel(pool.submit(job(13), 0.0))
    assert isinstance(pool.result(pool.submit(job(4), 0.0)), Trained)


def check_failure(pool: Pool) -> None:
    good, bad = pool.submit(job(4), 0.0), pool.submit(job(13), 0.0)
    assert isinstance(pool.result(good), Trained)
    with pytest.raises(DeviceError) as caught:
        pool.result(bad)
    message = str(caught.value)
    assert "Train failed on device 13 (task 13, seed 113)" in message
    assert "Traceback" in message
    assert "RuntimeError: an unlucky device" in message
    assert caught.value.job.device == 13


def test_a_failure_shows_device_seed_and_traceback_inline() -> None:
    check_failure(Inline(perform))


def test_a_failure_shows_device_seed_and_traceback_from_a_process(processes: MakePool) -> None:
    check_failure(processes(2))


def test_a_killed_worker_is_an_error_and_not_a_hang(processes: MakePool) -> None:
    said: list[str] = []
    pool = processes(2, say=said.append)
    ticket = pool.submit(job(66), 0.0)
    died = r"device 66 .*\n\nits worker process died \(exit code -9\).*for the second time"
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(DeviceError, match=died):
            pool.result(ticket)
    assert len(said) == 1
    assert isinstance(pool.result(pool.submit(job(4), 0.0)), Trained)  # the others go on


def test_what_a_dead_worker_had_is_done_again_and_the_user_is_told(processes: MakePool) -> None:
    DIED[0] = 0
    said: list[str] = []
    pool = processes(1, say=said.append)
    answer = pool.result(pool.submit(job(77), 0.0))
    assert isinstance(answer, Trained)
    assert torch.equal(answer.vector, torch.arange(4.0) * 2 + 177)
    (told,) = said
    assert "a worker process died (exit code -9)" in told
    assert "for device 77 (task 77) is done again" in told


def test_a_worker_killed_while_idle_is_replaced(processes: MakePool) -> None:
    pool = processes(1)
    process = team(pool)[0].process
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert isinstance(pool.result(pool.submit(job(4), 0.0)), Trained)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_group_does_not_end_a_worker(number: signal.Signals, processes: MakePool) -> None:
    said: list[str] = []
    pool = processes(1, say=said.append)
    pool.result(pool.submit(job(4), 0.0))  # it is at work, so it has said what it listens to
    ticket = pool.submit(job(50), 0.0)
    os.kill(team(pool)[0].process.pid or 0, number)
    assert isinstance(pool.result(ticket), Trained)
    assert said == []


@pytest.mark.parametrize("device", GIVES_UP)
@pytest.mark.parametrize("workers", ["inline", 1])
def test_a_model_that_ends_the_program_is_a_failure_of_its_device(workers: pools.Workers, device: int) -> None:
    pool = pools.factory(workers)(Site(perform, 16))
    name = type(GIVES_UP[device]).__name__
    with pytest.raises(DeviceError, match=rf"(?s)device {device} .*{name}"):
        pool.result(pool.submit(job(device), 0.0))
    pool.close()


def test_a_second_ctrl_c_is_the_users_and_not_the_models() -> None:
    pool = Inline(perform, stopping=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        pool.result(pool.submit(job(15), 0.0))


def test_workers_go_with_a_parent_that_is_killed() -> None:
    """Also in the middle of a long computation."""
    code = """
import sys, time
from fedasmu.pools import Job, Site, processes
from fedasmu.protocol import Evaluate
import torch

pool = processes(Site(lambda command, device, seed: time.sleep(device), 16), 2)
pool.result(pool.submit(Job(Evaluate(torch.zeros(1)), 0, 0, 0), 0.0))
for _ in range(2):
    pool.submit(Job(Evaluate(torch.zeros(1)), 60, 0, 0), 0.0)
print(*(worker.process.pid for worker in pool.workers.team), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(number) for number in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 30
    while any(map(alive, workers)):
        assert time.monotonic() < end, "a worker is still there"
        time.sleep(0.01)


def alive(process: int) -> bool:
    """Whether it runs: one that has ended may still be waiting for somebody to ask how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_sent_to_a_process_is_said_so(processes: MakePool) -> None:
    pool = processes(1)
    ticket = pool.submit(job(4, objective=lambda module, inputs, targets: targets), 0.0)
    with pytest.raises(DeviceError, match=r"cannot be sent to a worker process.*workers: inline"):
        pool.result(ticket)


def test_waiting_ends_when_the_user_asks_to_stop(processes: MakePool) -> None:
    pool = processes(1, stopping=lambda: True)
    with pytest.raises(Interrupted):
        pool.result(pool.submit(job(50), 0.0))


def test_long_waits_are_explained(processes: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedasmu.pools.contract.PATIENCE", 0.0)
    heard: list[str] = []

    def say(line: str) -> None:
        heard.append(line)
        opened(line)

    pool = processes(1, say=say)
    pool.submit(job(51), 0.0)
    pool.result(pool.submit(job(4), 1.0))
    assert {re.sub(r"\d+ s$", "N s", one) for one in heard} == {"still waiting for device 4 (task 4) after N s"}
    heard.clear()
    pool.result(pool.submit(Job(Evaluate(torch.zeros(1)), -1, -1, 0), 1.0))
    assert {re.sub(r"\d+ s$", "N s", one) for one in heard} <= {"still waiting for the evaluation after N s"}


def test_closing_leaves_no_process_behind() -> None:
    pool = pools.processes(Site(perform, 16), 2)
    pool.submit(job(50), 0.0)
    pool.close()
    assert not any(worker.process.is_alive() for worker in team(pool))


def test_timing_only_computes_nothing() -> None:
    vector = torch.ones(3)
    trained = timing_only(Train(vector, range(5), 0.1), 0, 0)
    assert isinstance(trained, Trained)
    assert trained.vector is vector
    probed = timing_only(Probe(vector, 0, gradient=True), 0, 0)
    assert isinstance(probed, Probed)
    assert probed.gradient is not None
    assert probed.gradient.tolist() == [0, 0, 0]
    assert timing_only(Probe(vector, 0, gradient=True, between=(vector, vector)), 0, 0) == Probed(0.0, slope=0.0)


class Fragile(nn.Linear):
    """Fails to train on one example, which device 4 alone holds."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and (inputs[:, 0] == 1234).any():
            raise RuntimeError("this example is poison")
        return super().forward(inputs)


def fragile() -> nn.Module:
    return Fragile(20, 2)


def poisoned() -> Any:
    data = blobs()
    data.train.inputs[data.shards[4][0], 0] = 1234
    return data


@pytest.mark.parametrize("workers", ["inline", 2])
def test_a_failing_device_can_be_repeated_alone(workers: Any, tmp_path: Path) -> None:
    experiment = Experiment(settings(engine="torch"), model=fragile, data=poisoned())
    with pytest.raises(DeviceError, match="device 4 ") as caught:
        experiment.run(tmp_path / "run", workers=workers)
    command, device, seed = failure.read(tmp_path / "run")
    assert (device, seed) == (4, caught.value.job.seed)
    assert torch.equal(command.vector, caught.value.job.command.vector)
    assert isinstance(command, Train)
    assert command.steps == caught.value.job.command.steps
    assert f"seed {seed}" in str(caught.value)
    with pytest.raises(RuntimeError, match="this example is poison"):
        Experiment.of_run(tmp_path / "run", model=fragile, data=poisoned()).repeat_failure(tmp_path / "run")


def test_there_may_be_no_failure_to_repeat(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no computation has failed there"):
        failure.read(tmp_path)


@pytest.mark.parametrize(
    "state",
    [
        {"command": {"$word": "os:system", "command": "exit"}, "device": 1, "seed": 2},
        {"command": "Train", "device": 1, "seed": 2},
        {"command": {"$word": "Fetch"}, "device": 1, "seed": 2},
        {"device": 1, "seed": 2},
        [],
    ],
)
def test_a_failure_names_nothing_but_our_computations(state: Any, tmp_path: Path) -> None:
    failure.save(job(1).command, 1, 2, tmp_path)
    folder = tmp_path / failure.FOLDER
    text = json.dumps({"format": checkpoint.FORMAT, "tree": state}).encode()
    data = (folder / "tensors.safetensors").read_bytes()
    (folder / "state.json").write_bytes(text)
    (folder / "sha256").write_text(sha256(text + data).hexdigest())
    with pytest.raises(UserError, match=r"not a word of ours|not a computation that failed"):
        failure.read(tmp_path)


def test_a_command_with_a_local_function_is_not_kept(tmp_path: Path) -> None:
    failure.save(job(1).command, 1, 2, tmp_path)
    assert (tmp_path / failure.FOLDER).is_dir()
    failure.save(job(1, objective=lambda module, inputs, targets: targets).command, 1, 2, tmp_path)
    assert not (tmp_path / failure.FOLDER).exists()


def test_an_evaluation_waits_for_the_trainings_that_are_needed_before_the_next_one() -> None:
    asked: list[float] = []

    class Listening(Inline):
        def submit(self, job: Job, needed: float) -> int:
            asked.append(needed)
            return super().submit(job, needed)

    meter = Meter(Listening(timing_only), lambda line: None)
    for now in (0.0, 10.0, 16.0):
        meter.evaluate(Model(int(now), torch.zeros(1)), Counters(), now)
    assert asked == [0.0, 20.0, 22.0]


def test_no_training_is_made_to_wait_behind_an_evaluation() -> None:
    vector, team = torch.zeros(3), Forked(Site(timing_only, 12), 2)
    try:
        assert team.give(1, Job(Evaluate(vector), -1, -1, 0))
        assert team.vacant(1)  # the other one has nothing to do
        for ticket in (2, 3):
            assert team.vacant(9)
            assert team.give(ticket, Job(Train(vector, range(1), 0.1), 0, ticket, 0))
        assert not team.vacant(9)
        assert sorted([given.ticket for given in worker.given] for worker in team.team) == [[1], [2, 3]]
    finally:
        team.close()
