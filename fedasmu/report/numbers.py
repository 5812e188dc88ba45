"""What a standing came to, as the cells of tables."""

from __future__ import annotations

import math

from fedasmu.report.standing import Reach, Standing


def reached(reach: Reach, compared: str = "") -> str:
    """The median time, and on how many of the seeds where not on all; empty: on none."""
    times = [f"{reach.median:,.0f}{compared}"] if math.isfinite(reach.median) else []
    some = [] if reach.reached in (0, reach.seeds) else [f"{reach.reached} of {reach.seeds} seeds"]
    return ", ".join([*times, *some])


def plus_minus(standing: Standing) -> str:
    """Its score, with the standard deviation over the seeds where there are several."""
    form = standing.metric.form(standing.score)
    spread = "" if math.isnan(standing.spread) else f" ± {standing.spread:{form}}"
    return f"{standing.score:{form}}{spread}"


def score_at(standing: Standing, time: float) -> str:
    value = standing.score_at(time)
    return standing.metric.shown(value) if math.isfinite(value) else "-"


def megabytes(value: float) -> str:
    """A small model's are thousandths of one."""
    return finite(value, ",.1f" if value == 0 or value >= 0.1 else ".2g")


def finite(value: float, form: str, otherwise: str = "-") -> str:
    return format(value, form) if math.isfinite(value) else otherwise
