"""The instruction sets that the engine is tried with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedasmu.engines import native
from fedasmu.engines.native import library


def usable() -> Iterator[str]:
    """The instruction sets that were built and that this processor has."""
    if native.available() is None:
        yield from library.VARIANTS[: library.load("base").engine_level() + 1]


@pytest.fixture(params=usable())
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(library.ENVIRONMENT, request.param)
    return str(request.param)
