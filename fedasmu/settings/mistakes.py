"""What is wrong with a recipe, in sentences: the key, its value, what is allowed, and the word that was meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from fedasmu.algorithms import FedAvg
from fedasmu.errors import did_you_mean
from fedasmu.section import Section, may_be_none
from fedasmu.settings.config import Config

MEANT = {  # what other frameworks and papers call our keys
    "learning_rate": "local.lr",
    "batch_size": "local.batch",
    "local_epochs": "local.epochs",
    "method": "algorithm.name",
    "dataset": "data.name",
    "clients": "fleet.devices",
    "num_clients": "fleet.devices",
    "rounds": "stop.uploads",
    "num_rounds": "stop.uploads",
}


@dataclass(frozen=True)
class Mistake:
    key: str
    text: str

    def __str__(self) -> str:
        return self.text


def mistakes(error: ValidationError, method: type[BaseModel], prefix: str = "") -> list[Mistake]:
    """Every mistake that pydantic found in the whole table, or in the method's with the prefix "algorithm."."""
    return [_mistake(entry, prefix, method if prefix else _section(entry["loc"]), method) for entry in error.errors()]


def _mistake(entry: Any, prefix: str, section: type[BaseModel], method: type[BaseModel]) -> Mistake:
    key = prefix + ".".join(str(part) for part in entry["loc"] if part not in ("int", "float"))
    if entry["type"] == "extra_forbidden":
        allowed = set(section.model_fields)
        meant = _meant(key, allowed, method)
        # A setting of another method: what is called the same elsewhere is seldom what was meant.
        listed = "" if meant and section is not method else f"; allowed: {_listed(allowed)}"
        return Mistake(key, f"{key}: unknown key{meant}{listed}")
    message = entry["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    inner = _section((*entry["loc"], ""))
    if entry["type"] == "value_error":
        named = re.split(r"\W", message)[0]
        if entry["loc"] and named in inner.model_fields:  # of a section as a whole: it begins with the key
            return Mistake(f"{key}.{named}", f"{key}.{message}")
        return Mistake(key, f"{key}: {message}" if key else message)
    if entry["type"] == "model_type":
        message = f"it is a section; set one of its keys: {_listed({*inner.model_fields})}"
    field = section.model_fields.get(key.rpartition(".")[2])
    if entry["type"] == "string_pattern_mismatch" and field is not None and field.description:
        message = f"must be {field.description}"
    if may_be_none(section, key.rpartition(".")[2]):
        message += ", or none"
    if entry["type"] == "literal_error":
        message += did_you_mean(str(entry["input"]), re.findall(r"'([^']*)'", entry["ctx"]["expected"]))
    if entry["type"] == "list_type":
        several = [part.strip() for part in str(entry["input"]).strip("[]").split(",")]
        message += f", for instance [{', '.join(several)}]"
    return Mistake(key, f"{key} = {json.dumps(entry['input'], default=str, ensure_ascii=False)}: {message}")


def meant(name: str, method: type[BaseModel] = FedAvg) -> list[str]:
    """The keys, in whichever section, that go by this name, or nearly."""
    if name in MEANT:
        return [MEANT[name]]
    all_keys = [*_keys(Config, ""), *(f"algorithm.{field}" for field in method.model_fields)]
    names = {key.rpartition(".")[2]: key for key in all_keys}
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return [key for key in all_keys if key.rpartition(".")[2] == name] or [names[one] for one in near]


def _meant(key: str, allowed: set[str], method: type[BaseModel]) -> str:
    """The end of the message about an unknown key: one of its name in another section, or one near it in its own."""
    section, dot, name = key.rpartition(".")
    found = meant(name, method)
    if key in found:  # a Python dict with a dot in a key
        return f"; write {section} as a table of its own, with {name} in it"
    near = did_you_mean(name, sorted(allowed), prefix=section + dot)
    exact = any(one.endswith(f".{name}") for one in found) or name in MEANT
    if near and not exact:
        return near
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """All keys of a section and of those in it."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section) and name != "algorithm":
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def _section(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The section in which an error occurred."""
    section: type[BaseModel] = Config
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        inner = None if field is None else field.annotation
        section = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else Section
    return section
