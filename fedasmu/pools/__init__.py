"""Who computes: this process, worker processes, a Ray cluster, or a pool of your own. The answers are the same bits."""

from __future__ import annotations

from functools import partial

from fedasmu.errors import UserError
from fedasmu.pools import connection
from fedasmu.pools.cluster import cluster
from fedasmu.pools.contract import Answer, Factory, Job, Perform, Pool, Site
from fedasmu.pools.forked import processes
from fedasmu.pools.inline import Inline, timing_only

__all__ = [
    "Answer",
    "Factory",
    "Inline",
    "Job",
    "Perform",
    "Pool",
    "Site",
    "Workers",
    "cluster",
    "factory",
    "processes",
    "timing_only",
]

Workers = int | str | Factory
"""How many worker processes; "inline" for none; "ray", or a Ray cluster's address; or a function that makes a pool."""


def factory(workers: Workers) -> Factory:
    """What makes the pool that the user asked for. Refuses what nobody can make before any work starts."""
    if callable(workers):
        return workers
    if workers == "inline":
        return lambda site: Inline(site.perform, site.stopping)
    if isinstance(workers, str) and connection.is_address(workers):
        connection.check(workers)
        return partial(cluster, address=workers)
    if isinstance(workers, int) and workers >= 1:
        return partial(processes, workers=workers)
    raise UserError(f"workers = {workers}: must be 1 or more, inline, or ray")


def name(workers: Workers) -> int | str:
    """As it stands in the summary of a run."""
    return getattr(workers, "__name__", type(workers).__name__) if callable(workers) else workers
