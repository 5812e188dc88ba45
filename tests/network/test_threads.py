"""A thread that the system does not give: a sentence on the side where it is missing, and no traceback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedasmu.errors import Refused
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
