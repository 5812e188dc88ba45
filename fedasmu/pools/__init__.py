"""Who computes: this process, worker processes, or a pool of your own. The answers are the same bits."""

from __future__ import annotations

from functools import partial

from fedasmu.errors import UserError
from fedasmu.pools.contract import Answer, Factory, Job, Perform, Pool, Site
from fedasmu.pools.inline import Inline, timing_only
from fedasmu.pools.processes import Processes

__all__ = [
    "Answer",
    "Factory",
    "Inline",
    "Job",
    "Perform",
    "Pool",
    "Processes",
    "Site",
    "Workers",
    "factory",
    "timing_only",
]

Workers = int | str | Factory
"""How many worker processes; "inline" for none; or a function that makes a pool for a `Site`."""


def factory(workers: Workers) -> Factory:
    """What makes the pool that the user asked for. Refuses what nobody can make before any work starts."""
    if callable(workers):
        return workers
    if workers == "inline":
        return lambda site: Inline(site.perform, site.stopping)
    if isinstance(workers, int) and workers >= 1:
        return partial(Processes, workers=workers)
    raise UserError(f"workers = {workers}: must be 1 or more, or inline")


def name(workers: Workers) -> int | str:
    """As it stands in the summary of a run."""
    return getattr(workers, "__name__", type(workers).__name__) if callable(workers) else workers
