"""Who holds what: one set of training examples and a list of indices for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedasmu.data.examples import Examples
from fedasmu.errors import UserError
from fedasmu.protocol import Workload


@dataclass(frozen=True)
class FederatedData:
    name: str
    train: Examples
    test: Examples
    shards: Sequence[Tensor]
    classes: int

    @classmethod
    def of(
        cls,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        devices: Sequence[Sequence[int] | Tensor],
        classes: int | None = None,
    ) -> FederatedData:
        """Your own data: (inputs, targets) to train and to test on, and the indices that each device holds."""
        count = len(train[1])
        for name, (inputs, targets) in (("train", train), ("test", test)):
            if len(inputs) != len(targets) or not len(targets):
                raise UserError(
                    f"{name}: {len(inputs)} inputs and {len(targets)} targets; need as many of each, and some"
                )
        shards = [torch.as_tensor(indices, dtype=torch.int64) for indices in devices]
        for device, shard in enumerate(shards):
            if not len(shard):
                raise UserError(f"devices[{device}] holds no example; every device needs at least one")
            if shard.min() < 0 or shard.max() >= count:
                raise UserError(f"devices[{device}] has indices outside 0..{count - 1}")
        if not shards:
            raise UserError("devices is empty: there must be at least one")
        largest = int(max(train[1].max(), test[1].max()))
        classes = largest + 1 if classes is None else classes
        if largest >= classes or min(train[1].min(), test[1].min()) < 0:
            raise UserError(f"targets must be classes 0..{classes - 1}")
        learn, judge = (Examples(inputs, targets.to(torch.int64)) for inputs, targets in (train, test))
        return cls("your own", learn, judge, shards, classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def workload(self, device: int, batch: int, epochs: int) -> Workload:
        return Workload(len(self.shards[device]), batch, epochs)
