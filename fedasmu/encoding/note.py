"""Notes: what a method's device half tells its server half beside the model, as a frozen dataclass of the method's.

A note crosses as a table of names and plain values or tensors, over the wire as in a simulation, and it is read in one
place, when the server receives it. So a server half meets its own type, with fields of their types; whether their
values can be true is for `Aggregator.plausible` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from fedasmu.encoding.codec import certain, fits, hints

T = TypeVar("T")
Field = tuple[str, Any, frozenset[type[Any]]]
"""Its name, its type, and the types of which every value fits."""


def table(note: Any) -> dict[str, Any]:
    """A note as it crosses: its fields in their order, without those that are None."""
    return {name: value for name in hints(type(note)) if (value := getattr(note, name)) is not None}


def of_table(kind: type[T], found: Any) -> T:
    """The note of a table. Raises ValueError where a field is missing or not of its type.

    A name that is not the note's is nobody's business here: it is remembered in events.jsonl, and that is all.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"a note is a table, not a {type(found).__name__}")
    given: dict[str, Any] = {}
    for name, hint, known in _fields(kind):
        value = given[name] = found.get(name)
        if type(value) not in known and not fits(value, hint):
            raise ValueError(f"{kind.__name__}.{name} cannot be a {type(value).__name__}")
    return kind(**given)


def _with_certain(kind: type[Any]) -> list[Field]:
    return [(name, hint, certain(hint)) for name, hint in hints(kind).items()]


_fields: Callable[[type[Any]], list[Field]] = cache(_with_certain)  # type: ignore[assignment] # a type is hashable


def of_line(kind: type[T], remarks: Mapping[str, Any]) -> T:
    """What a line of events.jsonl remembers of a note whose fields may all be None: what does not fit is None."""
    return kind(**{name: value for name, hint in hints(kind).items() if fits(value := remarks.get(name), hint)})
