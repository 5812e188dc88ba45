"""The ledger against what devices were told, and the model against a replay of the ledger."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedasmu.network import wire
from fedasmu.network.acts import Acts
from fedasmu.network.folder import Folder
from fedasmu.network.ledger import Ledger
from fedasmu.network.segment import Act
from fedasmu.network.site import attach
from fedasmu.pools import Inline, timing_only
from fedasmu.run.build import build
from fedasmu.settings.recipe import load
from fedasmu.storage import checkpoint
from fedasmu.storage.record import Record


def audit(out: Path, acknowledged: Iterable[int]) -> dict[str, Any]:
    """Of a server that is not running any more, and has kept every act."""
    written = Counter(act.head["task"] for act in acts_of(out) if act.kind == "upload")
    told = list(acknowledged)
    command = [sys.executable, str(Path(__file__).parent.parent / "network.py"), "digests", str(out)]
    kept, replayed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {
        "acknowledged": len(told),
        "missing": sum(written[task] == 0 for task in told),
        "double": sum(count > 1 for count in written.values()),
        "in_ledger": sum(written.values()),
        "model_is_replay": kept == replayed,
    }


def acts_of(out: Path) -> list[Act]:
    """Everything in the ledger, without the bodies, which would fill the memory."""
    ledger = Ledger(out / "ledger", Folder(out).table)
    try:
        return [Act(act.kind, act.head) for _, act in ledger.replay(0)]
    finally:
        ledger.close()


def print_digests(folder: str) -> None:
    """Of the model in the newest checkpoint, and of a replay of the whole ledger into a fresh server."""
    out = Path(folder)
    world = build(load(str(out / "config.toml")))

    def fresh(place: Path) -> Acts:
        place.mkdir()
        desk, roster = attach(world, Inline(timing_only), Record(place))
        return Acts(desk, Ledger(out / "ledger", Folder(out).table), roster, {})

    with tempfile.TemporaryDirectory() as scratch:
        kept, replayed = fresh(Path(scratch) / "kept"), fresh(Path(scratch) / "replayed")
        state = checkpoint.load(out / "checkpoint", print)
        assert state is not None
        kept.desk.server.restore(state["desk"]["server"])
        replayed.recover(0)
        print(*(wire.digest(one.desk.server.model.vector) for one in (kept, replayed)))
