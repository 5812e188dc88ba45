"""The pieces an aggregator or a learner is tried with alone: a federation, uploads, and answers to a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedasmu.algorithms import Aggregator, Federation
from fedasmu.protocol import Model, Report, Session, Task, Trained, Upload
from fedasmu.roster import Member, Roster, Seconds
from fedasmu.session import Step, Work
from fedasmu.storage.shelf import Shelf
from fedasmu.vector import Layout


def federation(
    directory: Path,
    examples: Sequence[int] = (10, 30, 20, 40),
    module: nn.Module | None = None,
    budget: int = 100,
    batch: int = 5,
) -> Federation:
    return Federation(
        seed=0,
        roster=Roster(Member(count, Seconds(1.0, 1.0 + device, 1.0)) for device, count in enumerate(examples)),
        layout=Layout.of(module or nn.Linear(1, 1)),  # two numbers, unless a module is given
        limit=3,
        budget=budget,
        batch=batch,
        epochs=2,
        shelf=Shelf(directory),
    )


def model(version: int, *numbers: float) -> Model:
    return Model(version, _vector(numbers))


def upload(base: Model, *numbers: float, device: int = 0, staleness: int = 1, loss: float = 0.0) -> Upload:
    """A device was sent `base`, and sends these numbers back."""
    report = Report(_vector(numbers), 10 * (device + 1), loss)
    return Upload(0, device, base, None, staleness, report, lr=0.1)


def aggregated(aggregator: Aggregator, current: Model, *uploads: Upload) -> Model:
    return Model(current.version + 1, aggregator.aggregate(current, uploads).vector)


def task(vector: Tensor, lr: float = 0.1, **note: Any) -> Task:
    return Task(id=0, device=0, model=Model(0, vector), lr=lr, seed=0, note=note)


def answered(session: Session, *vectors: Tensor) -> tuple[list[Any], Report]:
    """The commands that a session gives when its trainings end in these vectors, and its report."""
    work = Work(task(torch.zeros(0)), session)
    steps: list[Step] = [work.begin(), *(work.reply(Trained(vector, 0.5)) for vector in vectors)]
    assert isinstance(steps[-1], Report), f"the session wants more: {steps[-1]}"
    return steps[:-1], steps[-1]


def trained(answer: object) -> Trained:
    """A pool's or a trainer's answer to `Train`."""
    assert isinstance(answer, Trained)
    return answer


def close(vector: Tensor, *numbers: float) -> bool:
    return torch.allclose(vector, _vector(numbers), rtol=1e-5, atol=1e-7)


def _vector(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)
