"""The recipe's section on the network: the server's five times, what it keeps of its ledger, and what it takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedasmu.section import Section


class NetworkSettings(Section):
    poll: float = Field(
        25.0, gt=0, le=50, allow_inf_nan=False, description="seconds that a device waits for a task in one request"
    )
    offer: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds from handing out a task to the device's first sign of life",
    )
    lease: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="seconds without a sign of life after which a task is lost"
    )
    deadline: Annotated[float, Field(gt=0)] | Literal["auto", "none"] = Field(
        "auto", description="seconds for a whole task; auto: for rounds, by what tasks took so far"
    )
    gather: float = Field(
        60.0, ge=0, allow_inf_nan=False, description="seconds that a round waits for its whole cohort to be present"
    )
    keep: Literal["needed", "all"] = Field("needed", description="of the ledger: what a restart needs, or everything")
    max_examples: int = Field(10_000_000, ge=1, description="the most examples a device may say it has")
    per_address: int = Field(256, ge=0, description="connections open from one address; 0: any number")

    @property
    def beat(self) -> float:
        """Seconds between two signs of life."""
        return self.lease / 3
