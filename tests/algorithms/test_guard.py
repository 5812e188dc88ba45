"""The guard, and the lies that it is tried with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedasmu import Experiment
from fedasmu.algorithms import Aggregate, Aggregator, asyncdrop
from fedasmu.algorithms.attack import noise, same_value, scale, sign_flip
from fedasmu.algorithms.guard import Guard, GuardSettings, shortened, way
from fedasmu.errors import UserError
from fedasmu.protocol import Model, Upload
from helpers.blobs import Run, blobs, outputs, settings, softmax
from helpers.uploads import close, federation, model, upload


class Last(Aggregator):
    """The next model is the last upload."""

    def aggregate(self, current: Model, uploads: Any) -> Aggregate:
        return Aggregate(uploads[-1].report.vector, [1.0])


def guard(after: int = 3, **limits: float) -> Guard:
    return Guard(Last(), GuardSettings(after=after, window=5, **limits), trainable=2)


def went(length: float) -> Upload:
    """From (1, 2 | 9) by this much along the first axis; the third number is a statistic that went from 9 to 11."""
    return upload(model(0, 1.0, 2.0, 9.0), 1.0 + length, 2.0, 11.0)


def test_how_far_an_upload_went_is_counted_from_the_nearer_model() -> None:
    sent = upload(model(0, 0.0, 0.0, 5.0), 3.0, 4.0, 7.0)
    assert way(sent, trainable=2)[0] == pytest.approx(5.0)
    both = Upload(0, 0, sent.base, model(3, 3.0, 3.0, 5.0), 1, sent.report, lr=0.1)
    length, origin = way(both, trainable=2)
    assert length == pytest.approx(1.0)
    assert close(origin, 3.0, 3.0, 5.0)
    assert way(both, 2, torch.tensor([3.0, 0.0, 5.0]))[0] == pytest.approx(4.0), "or from where the method says"


def test_what_a_method_dropped_is_no_way_that_a_device_went(tmp_path: Path) -> None:
    """AsyncDrop's devices send zeros where they do not train: beside these a lie ten times as long would not show."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    known = federation(tmp_path, module=module)
    server = asyncdrop.AsyncDrop().aggregator(known)
    mask = server.brief(0)["mask"]
    base = Model(0, torch.full((known.size,), 2.0))
    sent = upload(base, *((2.0 + 0.1) * mask).tolist())
    assert way(sent, known.trainable, server.origin(sent))[0] == pytest.approx(0.1 * float(mask.sum()) ** 0.5, rel=1e-4)


def test_a_shortened_upload_lies_on_the_way() -> None:
    """A quarter of the way from (1, 2 | 9) to (5, 2 | 11) is (2, 2 | 9.5)."""
    sent = went(4.0)
    assert close(shortened(sent, sent.base.vector, 0.25).report.vector, 2.0, 2.0, 9.5)


def test_what_goes_beyond_is_shortened_to_the_limit_and_beyond_that_refused() -> None:
    """Usual is 2; with clip = 3 an upload of 12 is shortened to 6; with refuse = 10 one of 21 is refused."""
    guarded = guard(clip=3.0, refuse=10.0)
    for length in (1.0, 2.0, 4.0):
        assert guarded.plausible(went(1000.0)), "nothing is refused before enough is known"
        guarded.aggregate(model(1, 0.0, 0.0, 0.0), [went(length)])
    assert guarded.usual == pytest.approx(2.0)
    assert guarded.plausible(went(19.0))
    assert not guarded.plausible(went(21.0))
    long = guarded.aggregate(model(1, 0.0, 0.0, 0.0), [went(12.0)])
    assert close(long.vector, 7.0, 2.0, 10.0)
    assert guarded.lengths[-1] == pytest.approx(6.0), "what is usual cannot be raised at one go"
    short = guarded.aggregate(model(1, 0.0, 0.0, 0.0), [went(5.0)])
    assert close(short.vector, 6.0, 2.0, 11.0), "what is within the limit is left alone, to the bit"


def test_an_upload_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Upload] = []

    def counted(upload: Upload, *rest: Any) -> Any:
        measured.append(upload)
        return way(upload, *rest)

    monkeypatch.setattr("fedasmu.algorithms.guard.way", counted)
    guarded = guard(after=1, clip=3.0, refuse=10.0)
    guarded.aggregate(model(1, 0.0, 0.0, 0.0), [went(2.0)])
    sent = went(12.0)
    assert guarded.plausible(sent)
    assert close(guarded.aggregate(model(1, 0.0, 0.0, 0.0), [sent]).vector, 7.0, 2.0, 10.0)
    assert len(measured) == 2
    assert not guarded._found


def test_lies() -> None:
    """Of d = (3, -4), whose root mean square is sqrt(12.5)."""
    moved = torch.tensor([3.0, -4.0])
    assert close(sign_flip(moved, 10.0, 0), -3.0, 4.0)
    assert close(scale(moved, 10.0, 0), 30.0, -40.0)
    assert close(same_value(moved, 2.0, 0), 2 * 12.5**0.5, 2 * 12.5**0.5)
    drawn = noise(torch.ones(10_000), 3.0, 0) - 1.0
    assert float(drawn.std()) == pytest.approx(3.0, rel=0.05)
    assert torch.equal(noise(moved, 3.0, 7), noise(moved, 3.0, 7))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("method", ["fedasync", "fedasmu", "fedbuff", "fedavg"])
def test_drowned_uploads_do_less_harm_with_the_guard(method: str, run: Run) -> None:
    common = {"algorithm": {"name": method}, "attack": {"share": 0.3, "kind": "noise", "factor": 50.0}}
    bare = run(model=network, local={"batch": 15}, stop={"uploads": 100}, **common)
    limits = {"clip": 3.0, "refuse": 10.0, "after": 5, "window": 20}
    guarded = run(model=network, local={"batch": 15}, stop={"uploads": 100}, guard=limits, **common)
    assert guarded.summary["refused"] > 0
    late = slice(10, None)  # FedAsync forgets a bad upload soon, so the worst moment is looked at
    assert max(guarded.curve["loss"][late]) < max(bare.curve["loss"][late])


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_a_guarded_run_resumes_to_the_same_bits(run: Run, tmp_path: Path) -> None:
    changes = {
        "guard": {"clip": 1.2, "after": 5},
        "attack": {"share": 0.3, "kind": "noise", "factor": 2.0},
        "checkpoint_seconds": 1e-9,
    }
    whole = run(**changes)
    experiment = Experiment(settings(**changes), model=softmax, data=blobs())

    def stop_midway(desk: Any, line: Any) -> None:
        if desk.server.counters.received == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(tmp_path / "cut", observe=stop_midway)
    resumed = experiment.run(tmp_path / "cut", resume=True)
    assert outputs(resumed) == outputs(whole)


def test_without_a_guard_and_liars_nothing_changes(run: Run) -> None:
    assert outputs(run()) == outputs(run(guard={"window": 30}, attack={"kind": "scale"}))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"clip": 1.0}, "greater than 1"),
        ({"clip": 5.0, "refuse": 2.0}, "must not be below clip"),
        ({"after": 60}, "must not be more than window"),
    ],
)
def test_limits_that_make_no_sense_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Experiment(settings(guard=section), model=softmax, data=blobs())


@pytest.mark.parametrize(
    ("given", "clip", "refuse"),
    [
        ({}, 3.0, 10.0),
        ({"window": 20}, 3.0, 10.0),
        ({"refuse": 5.0}, 3.0, 5.0),
        ({"refuse": 2.0}, 2.0, 2.0),
        ({"clip": 20.0}, 20.0, 20.0),
        ({"clip": None}, None, 10.0),
        ({"clip": None, "refuse": None}, None, None),
    ],
)
def test_a_service_is_guarded_by_what_its_recipe_leaves_open(
    given: dict[str, Any], clip: float | None, refuse: float | None
) -> None:
    guarded = GuardSettings(**given).for_a_service()
    assert (guarded.clip, guarded.refuse) == (clip, refuse)
    assert guarded.window == given.get("window", 50)


def test_a_guard_says_what_it_does() -> None:
    assert str(GuardSettings()) == "off"
    assert str(GuardSettings(refuse=10)) == "uploads are refused beyond 10 times the usual length"
    both = str(GuardSettings(clip=3, refuse=10))
    assert both == "uploads are shortened beyond 3 times and refused beyond 10 times the usual length"
