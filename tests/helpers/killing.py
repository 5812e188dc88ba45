"""A kill in the middle of a removal: for tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Killed(BaseException):
    pass


@contextmanager
def killed_while_removing(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """What is removed meanwhile has lost a file of this name, and nothing more, when the process dies."""

    def killed(path: Path, **options: object) -> None:
        for file in path.rglob(name):
            file.unlink()
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            yield
