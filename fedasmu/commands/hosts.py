"""Where a server listens, and what devices are told of that."""

from __future__ import annotations

import re
import socket

from fedasmu.errors import UserError

HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9][A-Za-z0-9._-]{0,252}))(?::\d{1,5})?")


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--listen {text}: write it as ADDRESS:PORT, for instance 0.0.0.0:8443")
    return host.strip("[]"), int(port)


def named(name: str) -> str:
    """The host that is told with --name, without a port, and an address of IPv6 without its brackets."""
    found = HOST.fullmatch(name)
    if name and not found:
        raise UserError(
            f"--name {name}: write the host as devices are to reach it: a name in ASCII (one with other letters "
            "in its form of xn--), or an address; behind a proxy HOST:PORT, too"
        )
    return "" if found is None else found[1] or found[2]


def told(host: str) -> str:
    """The address that devices are told: of all addresses of this machine, its name."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
