"""Notes: what a method's device half tells its server half beside the model, as a frozen dataclass of the method's.

A note crosses as a table of names and plain values or tensors, over the wire as in a simulation, and it is read in one
place, when the server receives it. So a server half meets its own type, with fields of their types; whether their
values can be true is for `Aggregator.plausible` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from fedasmu.codec import fits, hints

T = TypeVar("T")


def table(note: Any) -> dict[str, Any]:
    """A note as it crosses: its fields in their order, without those that are None."""
    values = ((one.name, getattr(note, one.name)) for one in fields(note))
    return {name: value for name, value in values if value is not None}


def of_table(kind: type[T], found: Any) -> T:
    """The note of a table. Raises ValueError where a field is missing or not of its type.

    A name that is not the note's is nobody's business here: it is remembered in events.jsonl, and that is all.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"a note is a table, not a {type(found).__name__}")
    given: dict[str, Any] = {}
    for name, hint in hints(kind).items():
        given[name] = found.get(name)
        if not fits(given[name], hint):
            raise ValueError(f"{kind.__name__}.{name} cannot be a {type(given[name]).__name__}")
    return kind(**given)


def of_line(kind: type[T], remarks: Mapping[str, Any]) -> T:
    """What a line of events.jsonl remembers of a note whose fields may all be None: what does not fit is None."""
    return kind(**{name: value for name, hint in hints(kind).items() if fits(value := remarks.get(name), hint)})
