"""Every update rule on numbers worked by hand, of mixed sign."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu.algorithms import (
    area,
    asofed,
    asyncpart,
    ca2fl,
    fadas,
    fedbuff,
    feddelay,
    feddyn,
    fedfa,
    fedprox,
    fedsa,
    fedsa_semi,
    moon,
    port,
)
from fedasmu.models.contrast import contrastive
from fedasmu.protocol import Memory, Report, Train, Trained, Workload
from fedasmu.roster import Member, Seconds
from fedasmu.session import Work
from helpers.blobs import Run
from helpers.uploads import aggregated, answered, close, federation, model, task, upload

WORK = Workload(examples=10, batch=5, epochs=2)


def test_fedprox_pulls_towards_what_it_was_sent() -> None:
    (command,), report = answered(
        fedprox.FedProx(mu=0.3).learner().train(task(torch.ones(2)), WORK, {}), torch.zeros(2)
    )
    assert (command.pull, command.anchor, command.steps) == (0.3, None, range(4))
    assert report.examples == 10


def test_moon_contrast() -> None:
    features = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    received = torch.tensor([[0.0, 1.0], [6.0, 8.0]])  # cosines 0 and 1
    previous = torch.tensor([[-1.0, 0.0], [-3.0, -4.0]])  # cosines -1 and -1
    by_hand = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-4))) / 2
    assert float(contrastive(features, received, previous, 0.5)) == pytest.approx(by_hand, rel=1e-5)


def test_moon_has_no_contrast_on_first_participation_and_pays_for_it_later() -> None:
    learner, start = moon.Moon(mu=2.0).learner(), torch.zeros(2)
    memory: Memory = {}
    (first,), _ = answered(learner.train(task(start), WORK, memory), torch.tensor([1.0, -1.0]))
    assert (first.objective, first.work) == (None, 1.0)
    (second,), _ = answered(learner.train(task(start), WORK, memory), torch.tensor([2.0, -1.0]))
    assert second.objective.previous.tolist() == [1.0, -1.0]
    assert second.objective.received is start
    assert second.work == pytest.approx(5 / 3)
    assert memory["previous"].tolist() == [2.0, -1.0]


def test_feddyn_strength() -> None:
    assert feddyn.strength(0.1, examples=20, mean_examples=30.0) == pytest.approx(0.15)


def test_feddyn_server(tmp_path: Path) -> None:
    aggregator = feddyn.FedDyn(alpha=0.1).aggregator(federation(tmp_path))  # 4 devices, 25 examples each on average
    assert aggregator.brief(0) == {"strength": pytest.approx(0.25)}
    w0 = model(0, 1, -2)
    w1 = aggregated(aggregator, w0, upload(w0, 3, -1), upload(w0, -1, -4, device=1))
    assert close(w1.vector, 1, -2.75)  # mean (1, -2.5), and h = (0, -1) / 4
    w2 = aggregated(aggregator, w1, upload(w1, 2, -1.75, device=2))
    assert close(w2.vector, 2.25, -1.75)  # h = (0, -0.25) + (1, 1) / 4


def test_feddyn_device() -> None:
    learner = feddyn.FedDyn().learner()
    memory: Memory = {}
    start = task(torch.tensor([1.0, -2.0]), strength=0.2)
    (first,), _ = answered(learner.train(start, WORK, memory), torch.tensor([3.0, -3.0]))
    assert first.pull == 0.2
    assert close(first.anchor, 1, -2)
    assert close(memory["h"], 2, -1)
    again = task(torch.tensor([0.0, 1.0]), strength=0.2)
    (second,), _ = answered(learner.train(again, WORK, memory), torch.tensor([1.0, -1.0]))
    assert close(second.anchor, -2, 2)  # received - h
    assert close(memory["h"], 3, -3)


def test_fedbuff(tmp_path: Path) -> None:
    w = model(3, 1, -2)
    base = model(0, 0, 0)
    uploads = upload(w, 3, -3), upload(base, -2, 6, staleness=4)  # deltas (2, -1) and (-2, 6), weights 1 and 1/2
    plain = fedbuff.FedBuff(buffer=2, server_lr=0.5).aggregator(federation(tmp_path))
    assert close(aggregated(plain, w, *uploads).vector, 1.25, -1.5)
    constant = fedbuff.FedBuff(buffer=2, staleness="constant").aggregator(federation(tmp_path))
    assert close(aggregated(constant, w, *uploads).vector, 1, 0.5)
    heavy = fedbuff.FedBuff(buffer=2, momentum=0.9).aggregator(federation(tmp_path))
    once = aggregated(heavy, w, *uploads)
    assert close(once.vector, 1.5, -1)
    assert close(aggregated(heavy, once, *uploads).vector, 1.5 + 0.95, -1 + 1.9)


def test_fedbuff_divides_a_partial_buffer_by_k_too(tmp_path: Path) -> None:
    w = model(0, 1, -2)
    assert close(
        aggregated(fedbuff.FedBuff(buffer=4).aggregator(federation(tmp_path)), w, upload(w, 5, -6)).vector, 2, -3
    )


@pytest.mark.parametrize(("delay", "scaled", "dropped"), [(0, 0.6, 0.6), (3, 0.6, 0.6), (4, 0.15, 0.0), (6, 0.1, 0.0)])
def test_feddelay_step_size(delay: int, scaled: float, dropped: float) -> None:
    assert feddelay.step_size(delay, 3, 0.6, "scale") == pytest.approx(scaled)
    assert feddelay.step_size(delay, 3, 0.6, "drop") == dropped


def test_feddelay_knows_the_devices_in_flight(tmp_path: Path) -> None:
    aggregator = feddelay.FedDelay(server_lr=0.5).aggregator(federation(tmp_path))  # at most 3 in flight
    w, base = model(9, 1, -1), model(5, 0, 0)
    assert close(aggregated(aggregator, w, upload(base, 4, -8, staleness=4)).vector, 3, -5)
    assert close(aggregated(aggregator, w, upload(base, 4, -8, staleness=5)).vector, 1.5, -2)


def test_port_importance() -> None:
    assert port.importance(10, delay=10, cosine=-0.5, bound=10, staleness=3.0, similarity=1.0) == pytest.approx(17.5)


def test_port_weighs_by_staleness_and_direction(tmp_path: Path) -> None:
    base, w = model(0, 0, 0), model(2, 2, 0)
    against = upload(base, -3, 0, staleness=3)  # 10 examples, delay 2, cosine -1: 10 (3 * 10/12 + 0) = 25
    along = upload(base, 4, 0, staleness=3)  # cosine 1: 10 (2.5 + 1) = 35
    fresh = upload(w, 1, -1, device=3)  # 40 examples, delay 0: 40 (3 + 1) = 160
    result = port.Port(minimum=3).aggregator(federation(tmp_path)).aggregate(w, [against, along, fresh])
    assert result.weights == pytest.approx([25 / 220, 35 / 220, 160 / 220])
    assert close(result.vector, 2 + (-75 + 140 - 160) / 220, -160 / 220)


def test_port_takes_a_delay_of_one_for_agreement() -> None:
    assert port.agreement(model(1, 2, 0), upload(model(0, 0, 0), -1, 0, staleness=2), 2) == 1.0
    assert port.agreement(model(2, 2, 0), upload(model(0, 0, 0), -1, 0, staleness=3), 2) == pytest.approx(-1.0)


def test_port_counts_a_left_over_upload_as_one_of_a_full_buffer(tmp_path: Path) -> None:
    w = model(2, 2, 0)
    result = port.Port(minimum=4).aggregator(federation(tmp_path)).aggregate(w, [upload(w, 1, -1)])
    assert result.weights == [0.25]
    assert close(result.vector, 1.75, -0.25)


@pytest.mark.parametrize(
    ("epochs", "looks"),
    [(1, [2, 5, 8]), (2, [4, 8, 12, 16]), (3, [8, 16, 24]), (4, [8, 16, 24, 32])],
)
def test_port_can_be_called_in_twice_in_the_shortest_task(epochs: int, looks: list[int]) -> None:
    assert port.cuts(Workload(examples=128, batch=16, epochs=epochs)) == looks
    assert port.cuts(Workload(examples=20, batch=10, epochs=1)) == [1, 2]
    assert port.cuts(Workload(examples=5, batch=10, epochs=1)) == [1]


def test_port_delivers_early_when_called() -> None:
    work = Workload(examples=10, batch=5, epochs=3)
    mine, calls = task(torch.zeros(2)), iter([False, True])
    under_way = Work(mine, port.Port().learner().train(mine, work, {}), wanted=lambda: next(calls))
    first = under_way.begin()
    second = under_way.reply(Trained(torch.ones(2), 0.4))
    assert isinstance(first, Train)
    assert isinstance(second, Train)
    assert (first.steps, second.steps, second.vector.tolist()) == (range(2), range(2, 4), [1.0, 1.0])
    report = under_way.reply(Trained(torch.full((2,), 2.0), 0.2))
    assert isinstance(report, Report)
    assert (report.vector.tolist(), report.note) == ([2.0, 2.0], {"steps": 4})
    assert under_way.polls == [False, True]
    assert report.loss == pytest.approx(0.3)


def test_asofed_balance() -> None:
    v, before, h = torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 0.5]), torch.tensor([0.5, 3.0])
    assert close(asofed.direction(v, before, h), 2.5, 0.5)
    assert close(asofed.remembered(h, before, 0.25), -0.625, 1.125)
    assert asofed.rate(delay=4.0, typical=2.0) == pytest.approx(1 + math.log(2))
    assert asofed.rate(delay=1.0, typical=2.0) == 1.0


def test_asofed_feature_learning() -> None:
    weight = torch.tensor([[0.0, -math.log(3.0)]])  # exp of the sizes: 1 and 3
    assert close(asofed.featured(weight).flatten(), 0, -0.75 * math.log(3))


def test_asofed_server_replaces_a_devices_last_model(tmp_path: Path) -> None:
    aggregator = asofed.AsoFed().aggregator(federation(tmp_path))  # 10, 30, 20, 40 examples
    w0 = model(0, 1, -1)
    w1 = aggregated(aggregator, w0, upload(w0, 3, -2, device=0))
    assert close(w1.vector, 3, -2)  # 10 of 10 examples seen
    w2 = aggregated(aggregator, w1, upload(w0, -1, 3, device=1, staleness=2))
    assert close(w2.vector, 0.25 * 3 + 0.75 * -1, 0.25 * -2 + 0.75 * 3)  # 10 and 30 of 40, however stale
    w3 = aggregated(aggregator, w2, upload(w2, 7, -6, device=0, staleness=5))
    assert close(w3.vector, 0.25 * 7 + 0.75 * -1, 0.25 * -6 + 0.75 * 3)
    assert aggregator.brief(0)["rate"] == 1.0
    assert aggregator.brief(3)["rate"] == pytest.approx(1 + math.log(6 / 4.5))  # the devices take 3, 4, 5 and 6 seconds


def test_asofed_device_by_round() -> None:
    learner = asofed.AsoFed(pull=0.4, beta=0.25).learner()
    memory: Memory = {}
    note = {"rate": 2.0, "trainable": 2}
    start = torch.tensor([1.0, -1.0, 7.0])  # the third is a statistic
    (command,), report = answered(learner.train(task(start, **note), WORK, memory), torch.tensor([0.5, 1.0, 8.0]))
    assert command.pull == 0.4
    assert close(report.vector, 0, 3, 8)  # v = (0.5, -2)
    assert close(memory["v"], 0.5, -2)
    assert close(memory["h"], 0, 0)
    _, report = answered(learner.train(task(start, **note), WORK, memory), torch.tensor([0.0, -2.0, 9.0]))
    assert close(report.vector, 1 - 2 * 0.5, -1 - 2 * 3, 9)  # v = (1, 1), zeta = v - (0.5, -2) + 0
    assert close(memory["h"], 0.375, -1.5)  # 0.75 (0.5, -2)


def test_asofed_device_by_step() -> None:
    """With a pretended gradient, the recursion inside `Train` is the one of the paper."""
    learner = asofed.AsoFed(recursion="step", pull=0.5, beta=0.25).learner()
    start = vector = torch.tensor([1.0, -1.0])
    before = h = torch.zeros(2)
    mine, memory = task(start, lr=0.1, rate=2.0, trainable=2), dict[str, Any]()
    work = Work(mine, learner.train(mine, WORK, memory))
    command: Any = work.begin()
    for step, slope in enumerate(torch.tensor([[1.0, -2.0], [0.5, 3.0], [-4.0, 1.0], [2.0, -1.0]])):
        assert command.steps == range(step, step + 1)
        v = slope + 0.5 * (vector - start)
        expected = vector - 0.2 * (v - before + h)
        h, before = 0.25 * h + 0.75 * before, v
        vector = vector - command.lr * (slope + command.pull * (vector - command.anchor))
        assert torch.allclose(vector, expected, atol=1e-6)
        command = work.reply(Trained(vector, 0.0))
    assert isinstance(command, Report)
    assert torch.allclose(memory["v"], before, atol=1e-5)
    assert torch.allclose(memory["h"], h, atol=1e-5)


def test_fedsa_factors() -> None:
    assert fedsa.smoothed(None, 4, 0.9) == 4.0
    assert fedsa.smoothed(2.0, 12, 0.9) == pytest.approx(3.0)
    assert fedsa.lr_factor(3.0) == pytest.approx(0.5)
    assert fedsa.epoch_factor(delay=5.0, typical=2.0) == pytest.approx(0.5)
    assert fedsa.epoch_factor(delay=0.0, typical=2.0) == 1.0


def test_fedsa_stages(tmp_path: Path) -> None:
    aggregator = fedsa.FedSA(alpha=0.5, first_stage=0.03).aggregator(federation(tmp_path, budget=100))
    w = model(0, 1, -3)
    assert aggregator.brief(0) == {"epoch_factor": 2.0, "lr_factor": 1.0}
    w = aggregated(aggregator, w, upload(w, 3, 1, device=0, staleness=4))
    assert close(w.vector, 1.5, -2)  # weight 0.5 / sqrt(4)
    for _ in range(2):
        w = aggregated(aggregator, w, upload(w, 1, -1, device=1))
    assert aggregator.brief(1) == {
        "epoch_factor": 1.0,
        "lr_factor": 1.0,
    }  # the second stage; delays 3 and 0, median 1.5
    assert aggregator.brief(0) == {"epoch_factor": pytest.approx(2.5 / 4), "lr_factor": pytest.approx(0.5)}
    small = task(w.vector, epoch_factor=0.3, lr_factor=0.5)
    (command,), report = answered(fedsa.FedSA().learner().train(small, WORK, {}), w.vector)
    assert (command.lr, command.steps, report.note) == (0.05, range(2), {"epochs": 1})


def test_fedsa_ends_its_first_stage_when_the_loss_no_longer_falls(tmp_path: Path) -> None:
    aggregator = fedsa.FedSA(window=2, first_stage=1.0).aggregator(federation(tmp_path))
    w, stages = model(0, 1, -3), []
    for loss in (1.0, 0.8, 0.5, 0.5, 0.5, 0.498):  # windows of 0.9, 0.5 and 0.499: the last falls by less than 1 %
        stages.append(aggregator.aggregate(w, [upload(w, 1, 1, loss=loss)]).details["stage"])
    assert stages == [1, 1, 1, 1, 1, 2]


def test_fedsa_semi(tmp_path: Path) -> None:
    aggregator = fedsa_semi.FedSASemi().aggregator(federation(tmp_path))
    w = model(0, 1, -2)
    result = aggregated(aggregator, w, upload(w, 3, 0, device=0), upload(w, -1, 4, device=3))
    assert close(result.vector, 0.5 + 0.3 - 0.4, -1 + 1.6)  # shares 0.1 and 0.4
    assert aggregator.brief(0)["lr_factor"] == pytest.approx(6 / 8)  # 2 + 2 of 2 + 4, compared with 1 of 4
    assert aggregator.brief(1)["lr_factor"] == pytest.approx(1.5)


def test_fedsa_semi_keeps_nothing_of_the_model_at_the_most(tmp_path: Path) -> None:
    """The device with four tenths of the examples is there three times while the server waits for another one."""
    aggregator, w = fedsa_semi.FedSASemi().aggregator(federation(tmp_path)), model(0, 1, 1)
    result = aggregator.aggregate(w, [upload(w, 0.5, 0.5, device=3) for _ in range(3)])
    assert result.weights == pytest.approx([1 / 3] * 3)
    assert close(result.vector, 0.5, 0.5)


def test_weights_follow_what_devices_enrol_with(tmp_path: Path) -> None:
    """100 examples were assumed; device 3 comes with 140 instead of 40, so all have 200."""
    known, w = federation(tmp_path), model(0, 1, -2)
    servers = [method.aggregator(known) for method in (asyncpart.AsyncPart(), fedsa_semi.FedSASemi())]
    dynamic = feddyn.FedDyn(alpha=0.1).aggregator(known)
    known.roster.enrol(3, Member(140, Seconds(1.0, 1.0, 1.0)))
    weights = [server.aggregate(w, [upload(w, 2, 2, device=3)]).weights for server in servers]
    assert weights == [[0.9], [0.7]]  # of the first, 0.5 * 0.7 / 0.25, but 0.9 at the most
    assert dynamic.brief(0) == {"strength": pytest.approx(0.1 * 50 / 10)}


def test_asofed_counts_a_device_as_it_was_last_seen(tmp_path: Path) -> None:
    """The mean of the last models, by examples, when one of 10 and one of 30 comes back with 1,000, and once more."""
    known = federation(tmp_path)
    server = asofed.AsoFed().aggregator(known)
    w = aggregated(server, model(0, 1, -2), upload(model(0, 1, -2), 100, 0, device=0))
    w = aggregated(server, w, upload(w, 0, 0, device=1))
    assert close(w.vector, 25, 0)
    known.roster.enrol(0, Member(1000, Seconds(1.0, 1.0, 1.0)))
    again = asofed.AsoFed().aggregator(known)
    again.restore(server.state())
    w = aggregated(again, w, upload(w, 1.03, 0, device=0))
    torch.testing.assert_close(w.vector, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(aggregated(again, w, upload(w, 0, 2.06, device=0)).vector, torch.tensor([0.0, 2.0]))


def test_fedsa_semi_lets_nobody_lag_by_more_than_its_bound(run: Run) -> None:
    result = run(algorithm={"name": "fedsa-semi", "bound": 2, "buffer": 1}, pacing={"max_in_flight": 8})
    lags = [event["staleness"] - 1 for event in result.events if event["event"] == "upload"]
    assert max(lags) == 2


def test_asyncpart_weight(tmp_path: Path) -> None:
    assert asyncpart.participation(uploads=2, total=6, devices=4) == pytest.approx(0.3)
    assert asyncpart.fusion_weight(0.1, 0.3, 3, 0.6, 0.5, 0.9) == pytest.approx(0.1)
    assert asyncpart.fusion_weight(0.4, 0.1, 0, 0.6, 0.5, 0.9) == 0.9
    aggregator = asyncpart.AsyncPart().aggregator(federation(tmp_path))
    w = model(0, 1, -2)
    w = aggregated(aggregator, w, upload(w, 6, 3, device=0))
    assert close(w.vector, 2, -1)  # 0.5 * 0.1 / 0.25 = 0.2
    assert close(aggregated(aggregator, w, upload(w, -6, 3, device=0)).vector, 1, -0.5)  # 0.5 * 0.1 / 0.4


def test_ca2fl(tmp_path: Path) -> None:
    aggregator = ca2fl.Calibrate(ca2fl.CA2FL(buffer=2), federation(tmp_path))
    w0 = model(0, 1, -1)
    w1 = aggregated(aggregator, w0, upload(w0, 3, -2, device=0), upload(w0, 1, 3, device=1))
    assert close(w1.vector, 2, 0.5)  # plain mean of (2, -1) and (0, 4)
    w2 = aggregated(aggregator, w1, upload(w1, 1, 1.5, device=0), upload(w1, 4, -1.5, device=2))
    # mean h = (2, 3) / 4; half of (-1, 1) - (2, -1) and of (2, -2) - 0
    assert close(w2.vector, 2 + 0.5 + 0.5 * (-3 + 2), 0.5 + 0.75 + 0.5 * (2 - 2))
    assert close(aggregator.mean_h, (-1 + 0 + 2) / 4, (1 + 4 - 2) / 4)


def test_ca2fl_with_a_device_twice_in_one_buffer(tmp_path: Path) -> None:
    aggregator = ca2fl.Calibrate(ca2fl.CA2FL(buffer=2), federation(tmp_path))
    w0 = model(0, 0, 0)
    aggregated(aggregator, w0, upload(w0, 4, -4, device=0), upload(w0, 8, -2, device=0))
    assert close(aggregator.mean_h, 2, -0.5)  # its last update alone


def test_fadas_moments() -> None:
    zero = torch.zeros(2)
    m, v, peak = fadas.moments(torch.tensor([2.0, -4.0]), zero, zero, torch.tensor([1.0, 0.0]), 0.5, 0.75)
    assert (m.tolist(), v.tolist(), peak.tolist()) == ([1.0, -2.0], [1.0, 4.0], [1.0, 4.0])
    assert [fadas.delay_adaptive(0.6, delay, 2) for delay in (0, 2, 3)] == pytest.approx([0.6, 0.6, 0.2])


def test_fadas_server(tmp_path: Path) -> None:
    aggregator = fadas.Fadas(buffer=2, server_lr=0.6, beta1=0.5, beta2=0.75).aggregator(federation(tmp_path))
    w = model(4, 1, -1)
    uploads = upload(w, 3, -3), upload(w, 3, -7, device=1)  # mean delta (2, -4)
    once = aggregated(aggregator, w, *uploads)
    assert close(once.vector, 1.6, -1.6)  # (1, -2) / (1, 2)
    twice = aggregated(aggregator, once, upload(w, 1, -1, staleness=4), upload(w, 1, -1, staleness=2))
    assert close(twice.vector, 1.6 + 0.2 * 0.5, -1.6 - 0.2 * 0.5)  # the peak stays, the largest delay is 3


def test_fedfa(tmp_path: Path) -> None:
    w = model(0, 4, -4)
    models = fedfa.FedFa(window=2).aggregator(federation(tmp_path))
    first = aggregated(models, w, upload(w, 2, 2))
    assert close(first.vector, 3, -1)
    assert close(aggregated(models, first, upload(w, -4, 6)).vector, -1, 4)
    deltas = fedfa.FedFa(window=2, form="delta").aggregator(federation(tmp_path))
    first = aggregated(deltas, w, upload(w, 2, 2))
    assert close(first.vector, 3, -1)  # + (-2, 6) / 2
    assert close(aggregated(deltas, first, upload(first, 3, -5)).vector, 3 - 1, -1 + 1)


def test_area_keeps_the_mean_of_all_last_models(tmp_path: Path) -> None:
    whole = federation(tmp_path)
    aggregator = area.Area().aggregator(whole)
    initial = w = model(0, 4, -8)
    last = dict.fromkeys(range(4), initial.vector)
    for device, numbers in [(0, (8, 0)), (2, (-4, 4)), (0, (0, -16)), (3, (12, 0.5))]:
        w = aggregated(aggregator, w, upload(w, *numbers, device=device))
        last[device] = torch.tensor(numbers, dtype=torch.float32)
        assert torch.allclose(w.vector, torch.stack(list(last.values())).mean(0))


def test_a_step_of_train_is_asked_for_over_all_epochs() -> None:
    for settings in (fedbuff.FedBuff(), feddelay.FedDelay(), ca2fl.CA2FL(), fadas.Fadas(), fedfa.FedFa(), area.Area()):
        (command,), _ = answered(settings.learner().train(task(torch.ones(2)), WORK, {}), torch.zeros(2))
        assert command == Train(command.vector, range(4), 0.1)
