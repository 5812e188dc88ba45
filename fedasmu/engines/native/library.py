"""The compiled engine: which of its variants this processor runs, and its C interface."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from fedasmu.engines.native import flags
from fedasmu.errors import UserError

FOLDER = Path(__file__).parent
ENVIRONMENT = "FEDASMU_INSTRUCTIONS"  # names a variant for all runs whose recipe names none
INTERFACE = 4  # the same number is in engine.cpp
VARIANTS = tuple(flags.VARIANTS)  # the same source, compiled for other instruction sets

_number, _pointer, _real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
_Structure = TypeVar("_Structure", bound=ctypes.Structure)


class Data(ctypes.Structure):
    """Examples, as engine.cpp reads them."""

    _fields_ = [(name, _pointer) for name in ("inputs", "scale", "shift", "targets")] + [("wide", _number)]


class Step(ctypes.Structure):
    """How a step follows from its gradient: step.h."""

    _fields_ = [
        *((name, _real) for name in ("lr", "pull")),
        *((name, _pointer) for name in ("anchor", "mask", "state")),
        *((name, _real) for name in ("weight_decay", "momentum", "beta", "beta2", "eps")),
        *((name, _number) for name in ("adam", "done")),
    ]


class Contrast(ctypes.Structure):
    """MOON's term of the loss: the features under two other vectors, its weight and its temperature."""

    _fields_ = [("received", _pointer), ("previous", _pointer), ("mu", _real), ("temperature", _real)]


class Layer(ctypes.Structure):
    """A layer: `Description` in layer.h."""

    _fields_ = [
        ("kind", _number),
        ("reads", _number),
        ("other", _number),
        ("inputs", _number * 3),
        ("outputs", _number * 3),
        ("kernel", _number * 2),
        ("stride", _number * 2),
        ("padding", _number * 4),
        *((name, _number) for name in ("weight", "bias", "mean", "variance", "groups", "front", "relu")),
        ("eps", _real),
        ("momentum", _real),
    ]


class Window(ctypes.Structure):
    """Filters over a text: `Window` in text.h."""

    _fields_ = [(name, _number) for name in ("width", "filters", "weight", "bias", "relu")]


class Text(ctypes.Structure):
    """What stands before the layers: `TextDescription` in text.h."""

    _fields_ = [
        *((name, _number) for name in ("length", "vocabulary", "depth", "vectors", "padding", "count")),
        ("windows", ctypes.POINTER(Window)),
    ]


def array(kind: type[_Structure], values: Sequence[object]) -> ctypes.Array[_Structure]:
    """Structures made of the attributes that have the names of their fields."""
    names = [name for name, *_ in kind._fields_]
    return (kind * len(values))(*(kind(*(getattr(value, name) for name in names)) for value in values))


_SIGNATURES = {
    "engine_new": (_pointer, [_pointer, _number, _pointer, _number]),
    "engine_free": (None, [_pointer]),
    "engine_reserve": (ctypes.c_int, [_pointer, _number]),
    "engine_train": (_real, [*[_pointer] * 2, _number, *[_pointer] * 3, _number, *[_pointer] * 4]),
    "engine_features": (None, [_pointer, _pointer, _pointer, _pointer, _number, _pointer]),
    "engine_gradient": (_real, [_pointer, _pointer, _number, _pointer, _pointer, _number, _pointer, _pointer]),
    "engine_evaluate": (_real, [*[_pointer] * 4, _number, _pointer, _number, _pointer]),
}


@cache
def load(variant: str) -> ctypes.CDLL:
    """One variant of the engine; OSError if it was not built or does not load."""
    path = FOLDER / f"_engine_{variant}.so"
    if not path.exists():
        raise OSError("the native library was not built: no C++ compiler was found when fedasmu was installed")
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "engine_interface") or library.engine_interface() != INTERFACE:
        raise OSError("the native library was built from another version of fedasmu: install it again")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def variant(wanted: str = "auto") -> str:
    """The variant asked for, here or in the environment; otherwise the fastest that was built and that runs here."""
    source = "instructions"
    if wanted == "auto":
        source, wanted = ENVIRONMENT, os.environ.get(ENVIRONMENT) or "auto"
    runs = VARIANTS[: load("base").engine_level() + 1]
    if wanted == "auto":
        return next(name for name in reversed(runs) if _loads(name))
    if wanted not in runs:
        raise UserError(f"{source} = {wanted!r}: this processor runs {', '.join(runs)}")
    load(wanted)
    return wanted


def _loads(variant: str) -> bool:
    try:
        load(variant)
    except OSError:
        return False
    return True
