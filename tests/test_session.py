"""A device's session, driven by hand: its commands come out, its polls are answered, it can be played again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedasmu.errors import DeviceError
from fedasmu.protocol import Fetch, Model, Poll, Probe, Probed, Report, Session, Train, Trained
from fedasmu.session import Work
from helpers.uploads import task

START = torch.zeros(2)


def asking(seen: list[Any]) -> Session:
    """Trains, polls twice, asks twice, and remembers what it was answered."""
    seen.append((yield Train(START, range(1), 0.1)).loss)
    seen.append((yield Poll()))
    seen.append((yield Poll()))
    seen.append((yield Fetch()))
    seen.append((yield Probe(START, 1)).loss)
    seen.append((yield Fetch()))
    return Report(START, 3, 0.5)


def test_commands_come_out_and_polls_are_answered_on_the_way() -> None:
    seen: list[Any] = []
    calls = iter([False, True])
    work = Work(task(START), asking(seen), wanted=lambda: next(calls))
    fresh = Model(4, START)
    assert isinstance(work.begin(), Train)
    assert isinstance(work.reply(Trained(START, 1.0)), Fetch)
    assert isinstance(work.reply(fresh), Probe)
    assert isinstance(work.reply(Probed(2.0)), Fetch)
    assert isinstance(work.reply(None), Report)
    assert seen == [1.0, False, True, fresh, 2.0, None]
    assert (work.replies, work.polls, work.fetches) == (4, [False, True], 2)


@pytest.mark.parametrize(("replies", "kind"), list(enumerate([Train, Fetch, Probe, Fetch, Report])))
def test_a_replay_stops_where_the_session_was(replies: int, kind: type) -> None:
    seen: list[Any] = []
    fresh = Model(4, START)

    def perform(command: Train | Probe) -> Trained | Probed:
        return Trained(START, 1.0) if isinstance(command, Train) else Probed(2.0)

    work = Work(task(START), asking(seen), wanted=lambda: pytest.fail("the answers are known"))
    assert isinstance(work.replay(replies, [False, True], fresh, perform), kind)
    expected = [1.0, False, True, fresh, 2.0, None]
    assert seen == expected[: len(seen)]
    assert (work.replies, work.polls) == (replies, [False, True] if replies else [])


def broken() -> Session:
    yield Train(START, range(1), 0.1)
    raise ZeroDivisionError("a bug in a method")


def strange() -> Any:
    yield "train, please"


def empty_handed() -> Any:
    yield Train(START, range(1), 0.1)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (broken, "a bug in a method"),
        (strange, "a session yields Train, Probe, Evaluate, Fetch or Poll, not str"),
        (empty_handed, "a session returns a Report, not NoneType"),
    ],
)
def test_a_methods_mistake_is_told_with_its_device_and_seed(session: Any, message: str) -> None:
    def play(work: Work) -> None:
        work.begin()
        work.reply(Trained(START, 1.0))

    with pytest.raises(DeviceError, match=rf"the method failed on device 0 \(task 0, seed 0\)\n\n(.|\n)*{message}"):
        play(Work(task(START), session()))
