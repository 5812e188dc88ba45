"""A model that comes in pieces: where a reply breaks off inside it, only the rest is asked for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fedasmu.network import wire
from fedasmu.network.connection import Cut, Reply
from fedasmu.network.displaced import LABEL

PASSING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS)  # the rest will be there all the same


class Download:
    """What has come so far of a frame with a model."""

    def __init__(self) -> None:
        self._data = b""

    def keep(self, cut: Cut) -> None:
        """A reply broke off after this."""
        if cut.status == HTTPStatus.PARTIAL_CONTENT:
            self._data += cut.body
        elif cut.status == HTTPStatus.OK:
            self._data = cut.body

    @property
    def rest(self) -> tuple[str, dict[str, str]] | None:
        """Where the rest of the model is, and the headers to ask for it; None: the whole must be asked for again."""
        fields, begun = head(self._data)
        version, digest = fields.get("version"), fields.get("sha256")
        if not isinstance(version, int) or not isinstance(digest, str) or fields.get("tensors"):
            return None  # tensors that follow the model are no part of it
        label = fields.get("from")
        if label is not None and not (isinstance(label, str) and LABEL.fullmatch(label)):
            return None
        target = f"/v1/models/{version}" + (f"?from={label}" if label else "")
        return target, {"Range": f"bytes={begun}-", "If-Range": f'"{digest}"'}

    def settled(self, reply: Reply) -> Reply | None:
        """The whole frame, or what stands in its way. None: there is no such rest, so from the beginning."""
        if reply.status == HTTPStatus.PARTIAL_CONTENT:
            return Reply(HTTPStatus.OK, self._data + reply.body)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status in PASSING:
            return reply
        self._data = b""
        return None


def head(data: bytes | bytearray) -> tuple[dict[str, Any], int]:
    """A frame's head, if all of it has come, and how many bytes have come after it."""
    try:
        fields, rest = wire.head(data)
    except wire.Malformed:
        return {}, 0
    return fields, len(rest)
