"""Which optimiser makes the local steps: a part of a recipe's section [local]. The formulas are in rule.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedasmu.section import Section

Share = Annotated[float, Field(ge=0, lt=1)]


class Optimiser(Section):
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="of the local steps")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="times the weights, added to the gradient")
    betas: tuple[Share, Share] = Field((0.9, 0.999), description="of adam: how long it remembers")
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False, description="of adam: added to what it divides by")

    @model_validator(mode="after")
    def _check_momentum(self) -> Optimiser:
        if self.optimiser == "adam" and self.momentum:
            raise ValueError(f"momentum = {self.momentum}: is sgd's; adam has betas")
        return self

    @property
    def memories(self) -> int:
        """How many numbers it remembers of each parameter."""
        return 2 if self.optimiser == "adam" else int(self.momentum > 0)


PLAIN = Optimiser()
