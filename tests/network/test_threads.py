"""A thread that the system does not give: a sentence on the side where it is missing, and no traceback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedasmu.errors import Refused
from fedasmu.network.client import Client
from fedasmu.network.ledger import Ledger
from fedasmu.system.process import one_worker, started
from helpers.federation import Federation


@pytest.fixture
def _no_threads() -> Iterator[None]:
    """A stack larger than any memory: the system refuses every thread."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("_no_threads")
def test_what_the_server_needs_is_asked_for_before_anybody_waits_for_it(tmp_path: Path) -> None:
    for attempt in (
        lambda: started(lambda: None, "beat"),
        lambda: one_worker("evaluate"),
        lambda: Ledger(tmp_path / "ledger", {"run": "r"}),
    ):
        with pytest.raises(Refused, match="no further process or thread"):
            attempt()


def test_a_device_without_a_thread_for_its_signs_of_life_says_so(tmp_path: Path) -> None:
    federation = Federation(tmp_path, network={"gather": 0.0})
    federation.start()
    device = federation.device(0)
    device.join()
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(Refused, match="no further process or thread"):
            device.run()
    finally:
        threading.stack_size(before)
        federation.stop()


def test_a_device_says_hello_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beats find the visit over while it has new data: both would write its state folder at once."""
    federation = Federation(tmp_path)
    federation.start()
    device, hello, inside, most = federation.device(0), Client.hello, list[int](), list[int]()
    device.join()
    visit = device.client.visit

    def counted(self: Client, examples: int) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.2)  # for the other to come
        inside.pop()
        return hello(self, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "hello", counted)
        beats = threading.Thread(target=device.membership.revisit, args=(visit,))
        beats.start()
        device.membership.hello()
        beats.join()
    assert max(most) == 1
    device.close()
    federation.stop()
