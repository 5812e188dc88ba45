"""The fixtures that tests of every folder use."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedasmu import Experiment, FederatedData, Result
from helpers.blobs import Run, blobs, settings, softmax
from helpers.browser import Browser, obtain

os.environ.setdefault("NO_COLOR", "1")  # plain text, whatever terminal the tests are started from
torch.set_num_threads(1)
# Where the tests are started in the background, Ctrl-C is ignored in them, and so in the commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(workers=2, stop={"uploads": 9}) -> the result of a run on the blobs, each in a directory of its own."""
    count = 0

    def start(
        workers: Any = "inline",
        model: Callable[[], nn.Module] = softmax,
        data: FederatedData | None = None,
        **changes: Any,
    ) -> Result:
        nonlocal count
        count += 1
        experiment = Experiment(settings(**changes), model=model, data=data or blobs())
        return experiment.run(tmp_path / f"run-{count}", workers=workers)

    return start


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that it has written; only a power cut would, and fsync takes its time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable, reason = obtain(Path(tempfile.gettempdir()) / "fedasmu-tests-chromium.lock")
    if executable is None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = Browser(executable, Path(profile))
        try:
            yield started
        finally:
            started.close()
