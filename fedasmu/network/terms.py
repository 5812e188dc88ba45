"""What a server tells its devices about the run: names and numbers, never code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedasmu.algorithms import Algorithm, settings
from fedasmu.encoding.rounding import Precision
from fedasmu.engines.optimiser import Optimiser
from fedasmu.errors import UserError
from fedasmu.vector import Layout


class Text(BaseModel):
    """How texts become numbers, as the server's do."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    vocabulary: str = Field(pattern=r"^[0-9a-f]{64}$")  # the digest of its words
    length: int = Field(ge=1, le=1 << 20)
    padding: Literal["pre", "post"]
    truncation: Literal["pre", "post"]


class Terms(BaseModel):
    """The part of a recipe that a device needs. A device validates what it is told, whoever told it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str = Field(max_length=200)
    options: dict[str, int | float | bool | str | list[int]] = {}
    algorithm: dict[str, Any]
    batch: int = Field(ge=1, le=1 << 20)
    epochs: int = Field(ge=1, le=1 << 16)
    optimiser: Optimiser = Optimiser()
    augment: Literal["none", "crop", "crop+flip"] = "none"
    calibrate: bool = False
    shape: tuple[int, ...] = Field(min_length=1, max_length=4)
    classes: int = Field(ge=2, le=1 << 20)
    scale: list[float] | None = None  # of images in bytes: pixel * scale + shift, channel by channel
    shift: list[float] | None = None
    on_devices: float = Field(0.0, ge=0, lt=1)  # share of its examples that a device holds out, to measure on
    held_seed: int = Field(0, ge=0, lt=1 << 64)  # of which ones these are
    precision: Precision = "float32"
    text: Text | None = None
    layout: str  # digest of the names and shapes in a model

    @classmethod
    def read(cls, table: Any, url: str) -> Terms:
        try:
            terms = cls.model_validate(table)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise UserError(f"{url}: the server's recipe is not one that this version knows ({key})") from None
        if ":" in str(terms.algorithm.get("name", "")):
            raise UserError(f"{url}: the server names code as its method; a device takes no code from a server")
        return terms

    def method(self, url: str) -> Algorithm:
        try:
            return settings(self.algorithm)
        except (ValueError, KeyError):
            name = str(self.algorithm.get("name"))[:60]
            raise UserError(
                f"{url}: this version of fedasmu does not have the method {name!r} as the server sets it; "
                "install the server's version"
            ) from None


def layout_digest(layout: Layout) -> str:
    """Two networks with the same digest have the same vector."""
    parts = [[[entry.name, list(entry.shape)] for entry in entries] for entries in (layout.parameters, layout.buffers)]
    return sha256(json.dumps(parts).encode()).hexdigest()


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model that can be told: tensors, such as word vectors, come with the first model anyway."""
    return {name: value for name, value in options.items() if isinstance(value, int | float | str | bool | list)}
