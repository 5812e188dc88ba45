"""Tasks, models and reports as bytes. Whatever arrives is checked against what it must be before it is believed.

A frame is b"FAS1", the length of its head, the head as JSON, then tensors as raw little-endian bytes and nothing more.
A task's head lists its tensors. A report's does not: the server knows which tensors it wants, so that for every head
there is exactly one valid length. A model may be a displacement from one that is known to both: `displaced.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedasmu.encoding.displacement import Reference
from fedasmu.network import WIRE, bounds, displaced
from fedasmu.network.bounds import Malformed as Malformed
from fedasmu.protocol import Evaluated, Model, Report, Task

MAGIC = b"FAS1"
VERSION = WIRE
HEAD = 16_384  # bytes, at most
PREFIX = struct.Struct("<4sI")
DTYPES = {
    "float32": (torch.float32, "<f4"),
    "float64": (torch.float64, "<f8"),
    "float16": (torch.float16, "<f2"),
    "int64": (torch.int64, "<i8"),
    "int32": (torch.int32, "<i4"),
    "uint8": (torch.uint8, "u1"),
    "bool": (torch.bool, "u1"),
}
NAME_OF = {dtype: name for name, (dtype, _) in DTYPES.items()}
NOT_FINITE = ("nan", "inf", "-inf")

Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""The tensors that ride along with a report: name -> dtype and shape."""

Buffers = list[bytes | memoryview]
"""Bytes that follow each other. Those of a model are the model's own: it is never written to, and not copied."""


def head(data: bytes | bytearray | memoryview) -> tuple[dict[str, Any], memoryview]:
    """The head of a frame and the bytes that follow it."""
    view = memoryview(data)
    if len(view) < PREFIX.size:
        raise Malformed("the frame is too short")
    magic, length = PREFIX.unpack(view[: PREFIX.size])
    if magic != MAGIC:
        raise Malformed("not a frame of this version")
    if length > HEAD or PREFIX.size + length > len(view):
        raise Malformed("the head is longer than it may be")
    try:
        text = bytes(view[PREFIX.size : PREFIX.size + length]).decode()
        fields = json.loads(text, parse_constant=bounds.refuse, object_pairs_hook=bounds.once)
    except Malformed:
        raise
    except (ValueError, RecursionError):
        raise Malformed("the head is not JSON") from None
    if not isinstance(fields, dict):
        raise Malformed("the head is not a table")
    return fields, view[PREFIX.size + length :]


def frame(fields: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> Buffers:
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > HEAD:
        raise ValueError(f"the head has {len(text)} bytes: at most {HEAD} can be sent")
    return [PREFIX.pack(MAGIC, len(text)) + text, *map(raw, tensors)]


def digest(vector: Tensor) -> str:
    return sha256(raw(vector)).hexdigest()


def task_frame(task: Task, held: Reference | None = None) -> Buffers:
    """Server -> device, which holds a model or not. The task's comes first, then the tensors of the note."""
    told, model = displaced.exact(task.model.vector, held)
    tensors = {name: value for name, value in task.note.items() if isinstance(value, Tensor)}
    fields = {
        "id": task.id,
        "device": task.device,
        "version": task.model.version,
        "sha256": digest(task.model.vector),
        "lr": task.lr,
        "seed": task.seed,
        "share": task.share,
        "note": {name: value for name, value in task.note.items() if name not in tensors},
        "tensors": [[name, NAME_OF[value.dtype], list(value.shape)] for name, value in tensors.items()],
        **told,
    }
    return frame(fields, [*model, *(value.clone() for value in tensors.values())])


def read_task(data: bytes | bytearray | memoryview, size: int, held: Reference | None = None) -> Task:
    """What a device makes of a task's frame, when a model has `size` elements, and it holds one."""
    fields, rest = head(data)
    model = displaced.Announced(fields, size, [held])
    bounds.keys(fields, {"id", "device", "version", "sha256", "lr", "seed", "share", "note", "tensors"})
    shapes = _shapes(fields["tensors"], size)
    vector, others = _tensors(rest, model, shapes.values())
    if digest(vector) != fields["sha256"]:
        raise Malformed("the model's digest is another")
    note = bounds.note(fields["note"]) | dict(zip(shapes, others, strict=True))
    return Task(
        bounds.whole(fields["id"]),
        bounds.whole(fields["device"]),
        Model(bounds.whole(fields["version"]), vector),
        bounds.number(fields["lr"]),
        bounds.whole(fields["seed"], 1 << 63),
        note,
        bounds.number(fields["share"]),
    )


def model_frame(model: Model, base: Reference | None = None) -> Buffers:
    told, tensors = displaced.exact(model.vector, base)
    return frame({"version": model.version, "sha256": digest(model.vector), **told}, tensors)


def read_model(data: bytes | bytearray | memoryview, size: int, base: Reference | None = None) -> Model:
    fields, rest = head(data)
    model = displaced.Announced(fields, size, [base])
    bounds.keys(fields, {"version", "sha256"})
    vector, _ = _tensors(rest, model)
    if digest(vector) != fields["sha256"]:
        raise Malformed("the model's digest is another")
    return Model(bounds.whole(fields["version"]), vector)


def body(vector: Tensor, reference: Reference | None = None) -> Buffers:
    """A model as it stands in a frame."""
    return list(map(raw, displaced.exact(vector, reference)[1]))


def report_frame(report: Report, attachments: Shapes, last: Reference | None = None) -> bytes:
    """Device -> server. The number of examples is not sent: the server knows it. `last` is what it was sent last.

    A note that is not finite cannot be sent. It makes the report one that the server is to refuse, as its loss says.
    """
    plain = {name: value for name, value in report.note.items() if not isinstance(value, Tensor)}
    sound = all(not isinstance(value, float) or math.isfinite(value) for value in plain.values())
    loss = float(report.loss) if sound else math.nan
    fields: dict[str, Any] = {"loss": _told(loss), "note": plain if sound else {}}
    if (measured := report.measured) is not None:
        fields["measured"] = [_told(measured.loss), round(measured.score * measured.examples)]
    told, model = displaced.rounded(report.vector, last)
    return b"".join(frame(fields | told, [*model, *(report.note[name] for name in sorted(attachments))]))


def read_report(
    data: bytes | bytearray | memoryview,
    size: int,
    attachments: Shapes,
    examples: int,
    held: int = 0,
    known: displaced.Known = (),
) -> Report:
    """What the server makes of a report's frame: every length and every number in it is bounded.

    A device that holds out some examples must tell what it measured on them, and nobody else may.
    """
    fields, rest = head(data)
    model = displaced.Announced(fields, size, known)
    bounds.keys(fields, {"loss", "note"} | ({"measured"} if held else set()))
    note = bounds.note(fields["note"])
    if set(note) & set(attachments):
        raise Malformed("a name stands for two things")
    names = sorted(attachments)
    vector, others = _tensors(rest, model, (attachments[name] for name in names))
    measured = _measured(fields["measured"], held) if held else None
    return Report(vector, examples, _loss(fields["loss"]), note | dict(zip(names, others, strict=True)), measured)


def is_displaced(data: bytes | bytearray | memoryview) -> bool:
    """Whether the model in this frame is a displacement."""
    return "exponent" in head(data)[0]


def report_lengths(size: int, attachments: Shapes, part: float = 1.0) -> range:
    """How long a report's frame may be, whatever its head, where a model may take this part of its bytes."""
    others = sum(dtype.itemsize * math.prod(shape) for dtype, shape in attachments.values())
    return range(PREFIX.size + 2 + round(part * 4 * size) + others, PREFIX.size + HEAD + 4 * size + others + 1)


def raw(tensor: Tensor) -> memoryview:
    """A tensor as it stands in a frame: its own memory, wherever that has the bytes in this order."""
    array = tensor.detach().cpu().contiguous().numpy().astype(DTYPES[NAME_OF[tensor.dtype]][1], copy=False)
    return array.reshape(-1).view(np.uint8).data


def _tensors(
    rest: memoryview, model: displaced.Announced, others: Iterable[tuple[torch.dtype, tuple[int, ...]]] = ()
) -> tuple[Tensor, list[Tensor]]:
    """The model, and the tensors that follow it."""
    wanted, first = [*model.shapes, *others], len(model.shapes)
    if len(rest) != sum(dtype.itemsize * math.prod(shape) for dtype, shape in wanted):
        raise Malformed("the tensors have another length than they must have")
    found: list[Tensor] = []
    for dtype, shape in wanted:
        length = dtype.itemsize * math.prod(shape)
        array = np.frombuffer(rest[:length], DTYPES[NAME_OF[dtype]][1])
        if dtype is torch.bool and array.size and array.max() > 1:
            raise Malformed("a truth value is neither 0 nor 1")
        found.append(torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).to(dtype).view(shape))
        rest = rest[length:]
    return model.vector(found[:first]), found[first:]


def _shapes(table: Any, size: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The tensors that a task's head announces: none is larger than the model."""
    if not isinstance(table, list) or len(table) > bounds.NAMES:
        raise Malformed("the tensors are not a list")
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for line in table:
        if not (isinstance(line, list) and len(line) == 3 and isinstance(line[2], list) and len(line[2]) <= 8):
            raise Malformed("a tensor is a name, a type and a shape")
        name, dtype, shape = bounds.name(line[0]), line[1], tuple(bounds.whole(side, size + 1) for side in line[2])
        if not isinstance(dtype, str) or dtype not in DTYPES or math.prod(shape) > size or name in shapes:
            raise Malformed("a tensor is of no known type, too large, or there twice")
        shapes[name] = DTYPES[dtype][0], shape
    return shapes


def _told(loss: float) -> float | str:
    return loss if math.isfinite(loss) else str(loss)


def _loss(told: Any) -> float:
    return float(told) if isinstance(told, str) and told in NOT_FINITE else bounds.number(told)


def _measured(told: Any, held: int) -> Evaluated:
    """A loss, and how many of the examples were right: the server knows how many there are."""
    if not isinstance(told, list) or len(told) != 2:
        raise Malformed("what was measured is not a loss and a number of examples")
    return Evaluated(_loss(told[0]), bounds.whole(told[1], held + 1) / held, held)
