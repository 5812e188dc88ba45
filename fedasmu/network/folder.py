"""The folder of a served run: that of a simulation, and what makes it this server's: keys, seats and its name.

network.json    the run's id and where it listens
keys/           the server's certificate, and the next one
register.db     seats and invites
ledger/         every call made to the server
service.json    how the service stands, for whoever watches
presence.csv    when each device was there
links.csv       what of each delivered task was its upload, and what its training
failures/       what devices, and the method, failed on
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fedasmu
from fedasmu.errors import UserError
from fedasmu.network import WIRE, certificate
from fedasmu.network.connection import PUBLIC
from fedasmu.network.keys import Invite
from fedasmu.network.register import Register
from fedasmu.storage.record import SERVED
from fedasmu.system.disk import write_whole

FAILURES = 100  # that are kept


@dataclass(frozen=True, slots=True)
class Shown:
    """What devices see of a server that does not show a certificate of its own making."""

    files: list[str] = field(default_factory=list)  # certificate and key of a public authority
    name: str = ""  # the proxy's address, which ends TLS in front of the server


class Folder:
    def __init__(self, path: Path) -> None:
        """A folder that `make` has made. One process serves it at a time; `fedasmu keys` may look on."""
        self.path = path
        try:
            about = json.loads((path / SERVED).read_text())
            self.run, self.seats = str(about["run"]), int(about["seats"])
            self.host, self.port, self.bind = str(about["host"]), int(about["port"]), str(about["bind"])
            self.shown = Shown(**about.get("shown", {}))
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not the folder of a served run; begin one with fedasmu serve RECIPE") from None
        self.keys, self.failures = path / "keys", path / "failures"
        self.register = Register(path / "register.db", self.seats)

    @classmethod
    def make(
        cls,
        path: Path,
        seats: int,
        host: str,
        port: int,
        bind: str = "127.0.0.1",
        shown: Shown | None = None,
        members: Folder | None = None,
    ) -> Folder:
        """`host` is what devices are told, `bind` the address that the server listens on.

        The members of an earlier run keep their seats: they know the server by the same certificate.
        """
        run = secrets.token_hex(8)
        if members is None:
            certificate.make(path / "keys", certificate.CURRENT, {host, "localhost", "127.0.0.1"} - {""})
        else:
            members.check_room(seats)
            shutil.copytree(members.keys, path / "keys")
            members.register.copy(path / "register.db")
        about = {"run": run, "seats": seats, "host": host, "port": port, "bind": bind}
        about |= {"shown": asdict(shown or Shown())}
        write_whole(path / SERVED, json.dumps(about, indent=1) + "\n")
        return cls(path)

    def check_room(self, seats: int) -> None:
        """Whether all members of this run have their places in one with so many seats."""
        taken = max((seat.seat for seat in self.register.all()), default=-1) + 1
        if taken > seats:
            raise UserError(
                f"--members {self.path}: there is a device in seat {taken - 1}, but fleet.devices = {seats}"
            )

    @property
    def table(self) -> dict[str, Any]:
        """What opens every segment of the ledger."""
        return {"run": self.run, "wire": WIRE, "fedasmu": fedasmu.__version__}

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{self.shown.name or f'{host}:{self.port}'}"

    @property
    def context(self) -> ssl.SSLContext | None:
        """What the server proves itself with; None where a proxy does."""
        if self.shown.name:
            return None
        own = self.keys / f"{certificate.CURRENT}.pem", self.keys / f"{certificate.CURRENT}.key"
        return certificate.server_context(*map(Path, self.shown.files or own))

    def pins(self) -> list[bytes]:
        """How devices know the server: by its own certificate, and the next one, or by a public authority."""
        return [PUBLIC] if self.shown.name or self.shown.files else certificate.pins(self.keys)

    def pin(self) -> bytes:
        return self.pins()[0]

    def invite(self, **options: Any) -> Invite:
        return self.register.invite(self.pin(), **options)

    def join_line(self, invite: Invite) -> str:
        return f"fedasmu join {self.url} --invite {invite} --data my.npz"


def keep_failure(failures: Path, name: str, text: bytes) -> None:
    """For the person who runs the server, who looks at the first ones: a full disk, or many of them, stop nothing."""
    with suppress(OSError):
        failures.mkdir(exist_ok=True)
        if len(list(failures.iterdir())) < FAILURES:
            (failures / f"{name}.txt").write_bytes(text)
