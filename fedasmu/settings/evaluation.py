"""When the global model is measured, by what and on what: a recipe's section [evaluate]."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from fedasmu.events import COLUMNS
from fedasmu.measure import ACCURACY, METRICS, SMALLER, Metric, known, short
from fedasmu.section import Section


class Evaluation(Section):
    every: int = Field(10, ge=1, description="uploads between two evaluations")
    metric: Annotated[str, AfterValidator(partial(known, names=METRICS))] = Field(
        ACCURACY, description=f'{", ".join(METRICS)}, or your own as "package.module:function"'
    )
    larger_is_better: bool | None = Field(None, description="of your own metric; true unless given")
    targets: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(
        [], description="values of the metric to report the time to; of accuracy, from 0 to 1"
    )
    on_devices: float = Field(
        0.0, ge=0, lt=1, description="share of its examples that each device holds out, to measure what it is sent"
    )
    by: Literal["server", "devices"] = Field(
        "server",
        description="who measures the accuracy: the server on the test data, or devices on what they hold out",
    )
    average: int | None = Field(
        None, ge=1, description="judge and keep the mean of the models of about so many last uploads; none: the newest"
    )
    examples: int | None = Field(
        None, ge=1, description="judge by so many of the test examples, always the same ones; none: by all of them"
    )
    subset: int | None = Field(
        None, ge=1, description="test examples of the evaluations in between, always the same ones; none: all of them"
    )
    full_every: int = Field(10, ge=1, description="with a subset: each of so many evaluations is on all test examples")

    @field_validator("metric")
    @classmethod
    def _check_column(cls, metric: str) -> str:
        if short(metric) in COLUMNS:
            raise ValueError(f"metrics.csv has a column {short(metric)} already; give the function another name")
        return metric

    @field_validator("larger_is_better")
    @classmethod
    def _check_direction(cls, larger: bool | None, others: ValidationInfo) -> bool | None:
        metric = others.data.get("metric", "")
        if metric in METRICS and larger not in (None, metric not in SMALLER):
            raise ValueError(f"{metric} is better when it is {'smaller' if metric in SMALLER else 'larger'}")
        return larger

    @field_validator("targets")
    @classmethod
    def _check_shares(cls, targets: list[float], others: ValidationInfo) -> list[float]:
        if others.data.get("metric") == ACCURACY and not all(0 < target <= 1 for target in targets):
            raise ValueError(f"{targets}: an accuracy should be greater than 0 and less than or equal to 1")
        return targets

    @property
    def measure(self) -> Metric:
        return Metric.of(self.metric, self.larger_is_better)

    @model_validator(mode="after")
    def _check_judges(self) -> Evaluation:
        if self.on_devices and self.metric != ACCURACY:
            raise ValueError(f"on_devices = {self.on_devices}: devices measure the accuracy, not {self.metric}")
        if self.by == "devices" and not self.on_devices:
            raise ValueError("by = 'devices': they need examples to measure on; set on_devices, to 0.1 for instance")
        for name in ("examples", "subset", "average"):
            if self.by == "devices" and (count := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name} = {count}: is for the server's measuring, but by = 'devices' leaves it to them"
                )
        return self
