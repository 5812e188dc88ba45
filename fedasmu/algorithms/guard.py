"""A guard around any method: uploads that went much further than usual are shortened, or refused.

How far an upload went is its distance from the model that its device was sent: where it was sent two, from what the
method goes by (`Aggregator.origin`), or else from the nearer one. What is usual is the median over the last uploads
that were aggregated. This stops models that were scaled up or drowned in noise; it does not stop one that was turned
round and has an ordinary length. docs/explanation/guard.md has numbers.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator
from torch import Tensor

from fedasmu.algorithms.base import Aggregate, Aggregator
from fedasmu.protocol import Model, Upload
from fedasmu.section import Section

CLIP, REFUSE = 3.0, 10.0  # of a service that is not told otherwise


class GuardSettings(Section):
    clip: float | None = Field(
        None, gt=1, description="shorten uploads to so many times the usual length; none: never (serve: 3)"
    )
    refuse: float | None = Field(
        None, gt=1, description="refuse uploads beyond so many times it; none: never (serve: 10)"
    )
    window: int = Field(50, ge=1, description="uploads whose median length is the usual one")
    after: int = Field(5, ge=1, description="uploads before anything is shortened or refused")

    @model_validator(mode="after")
    def _check_order(self) -> GuardSettings:
        if self.clip is not None and self.refuse is not None and self.refuse < self.clip:
            raise ValueError(f"refuse = {self.refuse}: must not be below clip = {self.clip}")
        if self.after > self.window:
            raise ValueError(f"after = {self.after}: must not be more than window = {self.window}")
        return self

    def for_a_service(self) -> GuardSettings:
        """Real devices may be broken or hostile: they are guarded against, by as much as the recipe leaves open."""
        given = self.model_fields_set
        clip = self.clip if "clip" in given else min(CLIP, self.refuse or CLIP)
        refuse = self.refuse if "refuse" in given else max(REFUSE, self.clip or REFUSE)
        return GuardSettings(clip=clip, refuse=refuse, window=self.window, after=self.after)

    def __str__(self) -> str:
        limits = {"shortened": self.clip, "refused": self.refuse}
        told = [f"{what} beyond {limit:g} times" for what, limit in limits.items() if limit is not None]
        return f"uploads are {' and '.join(told)} the usual length" if told else "off"

    def around(self, aggregator: Aggregator, trainable: int) -> Aggregator:
        """The same aggregator, guarded if the settings ask for it."""
        asked_for = self.clip is not None or self.refuse is not None
        return Guard(aggregator, self, trainable) if asked_for else aggregator


def way(upload: Upload, trainable: int, origin: Tensor | None = None) -> tuple[float, Tensor]:
    """How far an upload went, and from where: the method's origin, or the nearest model that its device was sent."""
    models = [model.vector for model in (upload.base, upload.fresh) if model is not None]
    sent = models if origin is None else [origin]
    distances = [float((upload.report.vector - vector)[:trainable].norm()) for vector in sent]
    return min(zip(distances, sent, strict=True), key=lambda pair: pair[0])


def shortened(upload: Upload, origin: Tensor, share: float) -> Upload:
    """The upload as if it had gone only this share of its way. Statistics are mixed alike, so they stay statistics."""
    return replace(upload, report=replace(upload.report, vector=origin.lerp(upload.report.vector, share)))


class Guard(Aggregator):
    def __init__(self, aggregator: Aggregator, settings: GuardSettings, trainable: int) -> None:
        self.inner, self.settings, self.trainable = aggregator, settings, trainable
        self.note_type = aggregator.note_type
        self.lengths: deque[float] = deque(maxlen=settings.window)
        # Of the uploads that wait, by their tasks: a model may be large, and is measured once.
        self._found: dict[int, tuple[Upload, tuple[float, Tensor]]] = {}

    @property
    def usual(self) -> float | None:
        """None as long as too little is known."""
        return statistics.median(self.lengths) if len(self.lengths) >= self.settings.after else None

    def plausible(self, upload: Upload) -> bool:
        usual, refuse = self.usual, self.settings.refuse
        if usual is None or refuse is None:
            return self.inner.plausible(upload)
        found = self._way(upload)
        fits = found[0] <= refuse * usual and self.inner.plausible(upload)
        if fits:
            self._found[upload.task] = upload, found
        return fits

    def aggregate(self, current: Model, uploads: Sequence[Upload]) -> Aggregate:
        guarded = [self._guarded(upload) for upload in uploads]
        return self.inner.aggregate(current, guarded)

    def _guarded(self, upload: Upload) -> Upload:
        asked, found = self._found.pop(upload.task, (None, None))
        length, origin = found if found and asked is upload else self._way(upload)
        usual, clip = self.usual, self.settings.clip
        if usual is not None and clip is not None and length > clip * usual:
            upload, length = shortened(upload, origin, clip * usual / length), clip * usual
        self.lengths.append(length)  # as shortened, so that nobody can raise what is usual at one go
        return upload

    def _way(self, upload: Upload) -> tuple[float, Tensor]:
        return way(upload, self.trainable, self.origin(upload))

    def origin(self, upload: Upload) -> Tensor | None:
        return self.inner.origin(upload)

    def brief(self, device: int) -> Mapping[str, Any]:
        return self.inner.brief(device)

    def share(self, note: Mapping[str, Any]) -> float:
        return self.inner.share(note)

    def discarded(self, upload: Upload) -> None:
        self._found.pop(upload.task, None)
        self.inner.discarded(upload)

    def state(self) -> dict[str, Any]:
        return {"inner": self.inner.state(), "lengths": list(self.lengths)}

    def restore(self, state: dict[str, Any]) -> None:
        self.inner.restore(state["inner"])
        self.lengths = deque(state["lengths"], maxlen=self.settings.window)
