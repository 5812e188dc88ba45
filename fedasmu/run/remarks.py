"""What is allowed in a recipe, and seldom meant: said before a run begins."""

from __future__ import annotations

from fedasmu.settings.config import Config


def remarks(config: Config) -> list[str]:
    devices, every = config.fleet.devices, config.evaluate.every
    limit, waits = config.pacing.pace(devices).limit, config.algorithm.kind == "synchronous"
    found = []
    if devices > 1 and limit == 1 and not waits:
        found.append("1 device in flight: nothing overlaps, and no upload is stale; set pacing.max_in_flight")
    if waits and limit % every and every % limit:  # its models would look later than they are beside other methods'
        found.append(
            f"evaluate.every = {every}: a round is {limit} uploads, so that some are measured after they end; "
            f"a number that divides {limit}, or a multiple of it, would not be late"
        )
    if getattr(config.algorithm, "slot_unit", "") == "epoch" and config.local.epochs == 1:
        found.append("algorithm.slot_unit = epoch, local.epochs = 1: no device asks for a fresh model within one epoch")
    return found
