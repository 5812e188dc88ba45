"""The words of the protocol as JSON and tensors: for checkpoints, failed computations and the wire.

A tree of plain values, tensors and words (the dataclasses of a closed table) becomes text in which every tensor is a
number, and a list of the tensors, each of them once. What comes back is checked against the table: whatever the text
says, nothing but these words is made, with fields of their types, and anything else is a ValueError.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedasmu import protocol

Words = Mapping[str, type[Any]]
WORDS: Words = {
    word.__name__: word
    for word in (
        *(protocol.Model, protocol.Task, protocol.Report, protocol.Upload),
        *(protocol.Train, protocol.Trained, protocol.Probe, protocol.Probed),
        *(protocol.Evaluate, protocol.Evaluated, protocol.Fetch, protocol.Poll),
    )
}
TENSOR, TUPLE, ITEMS, RANGE, FLOAT, WORD = "$tensor", "$tuple", "$items", "$range", "$float", "$word"


def pack(tree: Any, words: Words = WORDS) -> tuple[bytes, dict[str, Tensor]]:
    """The text and the tensors of a tree. Raises TypeError for what is neither plain nor a word."""
    tensors: dict[str, Tensor] = {}
    return json.dumps(encode(tree, tensors, words), allow_nan=False).encode(), tensors


def unpack(text: bytes, tensors: Mapping[str, Tensor], words: Words = WORDS) -> Any:
    """The tree again. Raises ValueError for whatever `pack` does not write."""
    try:
        return decode(json.loads(text), tensors, words)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(tree: Any, tensors: dict[str, Tensor], words: Words = WORDS) -> Any:
    """The tree as JSON can hold it: every tensor replaced by its number in `tensors`, where it is stored once."""
    return _Writer(tensors, words).walk(tree)


def decode(tree: Any, tensors: Mapping[str, Tensor], words: Words = WORDS) -> Any:
    return _Reader(tensors, words).walk(tree)


# Neither of these two is part of a circle, as a function that knows itself is, or an object with its own methods in a
# table: what they saw would stay, tensors and all, until Python looks for circles, and tensors do not make it look.
class _Writer:
    def __init__(self, tensors: dict[str, Tensor], words: Words) -> None:
        self.tensors, self.words = tensors, words
        self.numbers = {id(tensor): number for number, tensor in tensors.items()}

    def walk(self, node: Any) -> Any:
        if isinstance(node, Tensor):
            return {TENSOR: self.number(node)}
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: self.walk(value) for key, value in node.items()}
            return {ITEMS: [[self.walk(key), self.walk(value)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {TUPLE: [self.walk(value) for value in node]}
        if isinstance(node, range):
            return {RANGE: [node.start, node.stop, node.step]}
        if isinstance(node, float) and not math.isfinite(node):
            return {FLOAT: str(node)}
        if self.words.get(type(node).__name__) is type(node):
            names = [field.name for field in fields(node) if field.init]
            return {WORD: type(node).__name__, **{name: self.walk(getattr(node, name)) for name in names}}
        return [self.walk(value) for value in node] if isinstance(node, list) else node

    def number(self, tensor: Tensor) -> str:
        if id(tensor) not in self.numbers:
            self.numbers[id(tensor)] = str(len(self.tensors))
            self.tensors[self.numbers[id(tensor)]] = tensor
        return self.numbers[id(tensor)]


class _Reader:
    """Believes nothing: every mark has one form, every word its fields."""

    def __init__(self, tensors: Mapping[str, Tensor], words: Words) -> None:
        self.tensors, self.words = tensors, words

    def walk(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.walk(value) for value in node]
        if not isinstance(node, dict):
            return node
        if WORD in node:
            given = {name: self.walk(value) for name, value in node.items() if name != WORD}
            return self.word(node[WORD], given)
        if (mark := next((key for key in node if key.startswith("$")), None)) is None:
            return {key: self.walk(value) for key, value in node.items()}
        if len(node) > 1 or mark not in MARKS:
            raise ValueError(f"{', '.join(node)}: not one of our marks, which stand alone")
        return MARKS[mark](self, node[mark])

    def tensor(self, number: Any) -> Tensor:
        if not isinstance(number, str) or number not in self.tensors:
            raise ValueError(f"there is no tensor {number!r}")
        return self.tensors[number]

    def tuple(self, values: Any) -> tuple[Any, ...]:
        return tuple(self.walk(value) for value in _list(values))

    def items(self, pairs: Any) -> dict[Any, Any]:
        found = {}
        for pair in _list(pairs):
            if len(_list(pair)) != 2:
                raise ValueError("an item is a key and a value")
            key = self.walk(pair[0])
            try:
                found[key] = self.walk(pair[1])
            except TypeError:
                raise ValueError(f"a {type(key).__name__} cannot be a key") from None
        return found

    def range(self, ends: Any) -> range:
        if len(_list(ends)) != 3 or not all(fits(end, int) for end in ends) or ends[2] == 0:
            raise ValueError(f"{ends}: not a range")
        return range(*ends)

    def float(self, text: Any) -> float:
        if text not in ("nan", "inf", "-inf"):
            raise ValueError(f"{text!r}: must be nan, inf or -inf")
        return float(text)

    def word(self, name: Any, given: dict[str, Any]) -> Any:
        kind = self.words.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ValueError(f"{name!r}: not a word of ours; there is {', '.join(self.words)}")
        types_of = hints(kind)
        if given.keys() != types_of.keys():
            raise ValueError(f"{name} has the fields {', '.join(types_of)}; not {', '.join(given)}")
        for field, value in given.items():
            if not fits(value, types_of[field]):
                raise ValueError(f"{name}.{field} cannot be a {type(value).__name__}")
        return kind(**given)


MARKS: dict[str, Callable[[_Reader, Any], Any]] = {
    TENSOR: _Reader.tensor,
    TUPLE: _Reader.tuple,
    ITEMS: _Reader.items,
    RANGE: _Reader.range,
    FLOAT: _Reader.float,
}


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"a {type(values).__name__} where a list belongs")
    return values


def _hints(kind: Any) -> dict[str, Any]:
    """The fields that a dataclass is made from, and their types."""
    known = get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind) if field.init}


hints: Callable[[type[Any]], dict[str, Any]] = cache(_hints)  # type: ignore[assignment] # a type is hashable


def certain(hint: Any) -> frozenset[type[Any]]:
    """Types whose values are of a field's type, so that nearly always one look is enough."""
    if get_origin(hint) in (types.UnionType, Union):
        return frozenset[type[Any]]().union(*(certain(one) for one in get_args(hint)))
    return frozenset((float, int) if hint is float else (hint,) if isinstance(hint, type) else ())


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type; of a mapping's or a list's content no more is asked than `decode` does."""
    if hint is Any:
        return True
    if get_origin(hint) in (types.UnionType, Union):
        return any(fits(value, one) for one in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is Callable:
        return callable(value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)
