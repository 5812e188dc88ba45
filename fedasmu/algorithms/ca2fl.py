"""Wang, Cao, Wu, Chen, Chen: Tackling the data heterogeneity in asynchronous federated learning with cached update
calibration. ICLR 2024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.fedavg import LocalSGD
from fedasmu.algorithms.steps import displacement, stepped
from fedasmu.protocol import Model, Upload
from fedasmu.schedule import Periodic


class Calibrate(Aggregator):
    """v = mean over all devices of h_k + (1/M) sum_S (delta_i - h_i), w <- w + eta_g v, then h_i <- delta_i.

    h_k, the last update of device k, is on the shelf; only their mean is in memory.
    """

    def __init__(self, settings: CA2FL, federation: Federation) -> None:
        self.settings, self.federation = settings, federation
        self.mean_h = torch.zeros(())

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        trainable, rate, weight = self.federation.trainable, self.settings.server_lr, 1 / self.settings.buffer
        update = displacement(uploads, [weight] * len(uploads))
        cached = {upload.device: self._cached(upload.device) for upload in uploads}
        correction = self.mean_h
        for upload in uploads:  # a device may be in the buffer twice: all of it refers to the cache as it was
            correction = correction - weight * cached[upload.device]
        update[:trainable] += correction
        for upload in uploads:
            delta = (upload.report.vector - upload.base.vector)[:trainable]
            self.mean_h = self.mean_h + (delta - cached[upload.device]) / self.federation.devices
            self.federation.shelf.put(upload.device, delta)
            cached[upload.device] = delta
        weights = [rate * weight] * len(uploads)
        return Aggregate(stepped(current, update, uploads, weights, trainable, rate), weights)

    def _cached(self, device: int) -> Tensor:
        cached = self.federation.shelf.get(device)
        return torch.zeros(()) if cached is None else cached

    def state(self) -> dict[str, Any]:
        return {"mean_h": self.mean_h}

    def restore(self, state: dict[str, Any]) -> None:
        self.mean_h = state["mean_h"]


class CA2FL(Algorithm):
    """A buffer of updates, calibrated by the last update of every device, so that the absent ones count too."""

    title = "CA2FL"
    kind = "buffered"
    name: str = "ca2fl"
    buffer: int = Field(5, ge=1, description="M: uploads to an aggregation")
    server_lr: float = Field(1.0, gt=0, description="eta_g: how far the server follows the calibrated update")

    def schedule(self, pace: Pace) -> Periodic:
        return Periodic(pace.count, pace.limit, self.buffer)

    def aggregator(self, federation: Federation) -> Aggregator:
        return Calibrate(self, federation)

    def learner(self) -> Learner:
        return LocalSGD()
