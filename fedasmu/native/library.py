"""The compiled engine: which of its variants this processor runs, and its C interface."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
INTERFACE = 2  # the same number is in engine.cpp
VARIANTS = ("base", "avx2", "avx512")  # the same source, compiled for other instruction sets: setup.py

_number, _pointer, _real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class Data(ctypes.Structure):
    """Examples, as engine.cpp reads them."""

    _fields_ = [(name, _pointer) for name in ("inputs", "scale", "shift", "targets")] + [("floats", _number)]


class Step(ctypes.Structure):
    """What one step of SGD subtracts: lr * mask * (gradient + pull * (w - anchor))."""

    _fields_ = [("lr", _real), ("pull", _real), ("anchor", _pointer), ("mask", _pointer)]


class Contrast(ctypes.Structure):
    """MOON's term of the loss: the features under two other vectors, its weight and its temperature."""

    _fields_ = [("received", _pointer), ("previous", _pointer), ("mu", _real), ("temperature", _real)]


_SIGNATURES = {
    "engine_new": (_pointer, [_pointer, _number, _pointer, _number]),
    "engine_free": (None, [_pointer]),
    "engine_train": (_real, [*[_pointer] * 2, _number, *[_pointer] * 3, _number, *[_pointer] * 3]),
    "engine_features": (None, [_pointer, _pointer, _pointer, _pointer, _number, _pointer]),
    "engine_gradient": (_real, [_pointer, _pointer, _number, _pointer, _pointer, _number, _pointer, _pointer]),
    "engine_evaluate": (_real, [_pointer, _pointer, _pointer, _pointer, _number, _pointer, _pointer]),
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


@cache
def best() -> ctypes.CDLL:
    """The fastest variant that this processor runs and that was built."""
    base = load("base")
    for variant in reversed(VARIANTS[1 : base.engine_level() + 1]):
        try:
            return load(variant)
        except OSError:
            continue
    return base
