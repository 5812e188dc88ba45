"""A run once more, from its ledger alone: the same calls to a fresh server give the same files."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from fedasmu.errors import UserError
from fedasmu.network import wire
from fedasmu.network.acts import Acts, Rebuild
from fedasmu.network.folder import Folder
from fedasmu.network.keys import content_digest, decoded, request_text, verified
from fedasmu.network.ledger import Ledger, segments
from fedasmu.network.segment import Act
from fedasmu.network.site import attach
from fedasmu.pools import Inline
from fedasmu.run.build import World
from fedasmu.storage.record import Record, differing


@dataclass(frozen=True, slots=True)
class Replayed:
    acts: int
    uploads: int
    unsigned: list[int]  # tasks whose upload is not signed by the device that had it
    model: str  # digest of the last model
    finished: bool
    differing: list[str]  # files of a finished run that came out otherwise


def replay(world: World, folder: Folder) -> Replayed:
    """Play the whole ledger of this run into a fresh server. Nobody else may work in the folder meanwhile."""
    place = folder.path / "ledger"
    if not (found := segments(place)) or found[0][0]:
        raise UserError(f'{place}: its first acts are gone: only a run with network.keep = "all" can be replayed')
    with tempfile.TemporaryDirectory() as scratch, closing(Ledger(place, folder.table)) as ledger:
        skipped = ledger.skipped(0)
        fresh = _Fresh(world, folder, Path(scratch))
        for number, act in ledger.replay(0):
            if number not in skipped:
                fresh.play(number, act)
        return fresh.concluded()


class _Fresh:
    """The server of a run that has not begun."""

    def __init__(self, world: World, folder: Folder, scratch: Path) -> None:
        self._world, self._folder, self._scratch = world, folder, scratch
        assert world.trainer is not None
        self._record = Record(scratch)
        desk, roster = attach(world, Inline(world.trainer.perform), self._record)
        ledger = Ledger(scratch / "ledger", folder.table)
        self._acts = Acts(desk, ledger, roster, world.config.algorithm.attachments(world.layout))
        self._played = self._uploads = 0
        self._unsigned: list[int] = []

    def play(self, number: int, act: Act) -> None:
        if act.kind == "upload":
            self._uploads += 1
            self._unsigned += [act.head["task"]] * (not self._signed(act))
        try:
            self._acts.apply(number, act)
        except Rebuild as error:
            raise UserError(f"act {number} ({act.kind}) cannot be played: {str(error).splitlines()[-1]}") from None
        self._played += 1

    def concluded(self) -> Replayed:
        server = self._acts.desk.server
        save_file(self._world.layout.tensors(self._acts.desk.judged.vector), self._scratch / "model.safetensors")
        self._record.close()
        self._acts.ledger.close()
        finished = (self._folder.path / "summary.json").exists()
        others = differing(self._folder.path, self._scratch) if finished else []
        model = wire.digest(server.model.vector)
        return Replayed(self._played, self._uploads, self._unsigned, model, finished, others)

    def _signed(self, act: Act) -> bool:
        """Whether a key of the device that had the task has signed these very bytes, for this task of this run."""
        task, proof = act.head["task"], act.head["signed"]
        device = self._acts.desk.server.ledger[task].task.device
        digest, target = content_digest(act.body), f"/v1/tasks/{task}/result"
        text = request_text(self._folder.run, "PUT", target, device, proof["visit"], proof["sequence"], digest)
        signature = decoded(proof["signature"], 64)
        return any(verified(key, signature, text) for key in self._folder.register.keys(device))
