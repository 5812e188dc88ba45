"""The methods of a study, as they are written on the command line and in Python.

fedasmu,fedbuff                     two methods
fedasync(alpha=0.9,local.lr=0.02)   one with settings: its own ones by their name, those of other sections with theirs
strong=fedasync(alpha=0.9)          ... and a label, which names its directory and its row
all, paper, tables, ablation, slots whole lists, see GROUPS
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedasmu.algorithms import ALGORITHMS, GROUPS, NAMES, ORDER, named
from fedasmu.errors import UserError, did_you_mean
from fedasmu.report.labels import slug
from fedasmu.settings.mistakes import meant
from fedasmu.settings.recipe import value_text

ELSEWHERE = {  # keys of a recipe that a study itself decides
    "algorithm.name": "the list of methods says which ones run; leave this out",
    "seed": "the number of seeds says which ones run (seeds); leave this out",
}


@dataclass(frozen=True)
class Variant:
    """A method with what it changes in the recipe."""

    label: str
    method: str
    changes: tuple[str, ...] = ()  # as for --set
    base: str = ""  # the label of the variant that this one was made from

    def changed(self, keys: Sequence[tuple[str, str]]) -> Variant:
        """This variant with further settings, which its label then shows."""
        if not keys:
            return self
        shown = [self.label, *(part for key, value in keys for part in (key.rpartition(".")[2], value))]
        changes = (*self.changes, *(f"{key}={value}" for key, value in keys))
        return replace(self, label=slug("-".join(shown)), changes=changes, base=self.label)


def read(text: str) -> list[Variant]:
    """All variants in a list of methods, each with a label of its own."""
    variants: list[Variant] = []
    for part in split(text, "methods:"):
        if part in GROUPS:
            variants += [Variant(name, name) for name in GROUPS[part]]
        else:
            variants.append(_one(part))
    return distinct(variants)


def repeated(text: str) -> list[str]:
    """What a list names more than once."""
    parts = split(text, "methods:")
    return sorted({part for part in parts if parts.count(part) > 1})


def _one(text: str) -> Variant:
    match = re.fullmatch(r"(?:([\w.+-]+)=)?([\w.+:-]+)(?:\((.*)\))?", text)
    if match is None:
        raise UserError(
            f"methods: {text}: write a method as name, name(key=value) or label=name(key=value); "
            "for instance: fedasmu,fedasync(alpha=0.9)"
        )
    label, method, inner = match.groups()
    if ":" not in method and method not in NAMES:
        hint = did_you_mean(method, [*NAMES, *GROUPS])
        raise UserError(
            f"methods: {method}: unknown method{hint} (known: {', '.join(NAMES)}; and the lists {', '.join(GROUPS)})"
        )
    keys = [key_value(part, "methods:", implied="algorithm.") for part in split(inner or "", "methods:")]
    once([key.removeprefix("algorithm.") for key, _ in keys], f"methods: {text}:")
    variant = Variant(slug(method), method).changed(keys)
    return replace(variant, label=slug(label)) if label else variant


def distinct(variants: list[Variant]) -> list[Variant]:
    """Refuse two variants that would share a directory; the same one twice is one."""
    unique = list(dict.fromkeys(variants))
    labels = [variant.label for variant in unique]
    for variant, label in zip(unique, labels, strict=True):
        if labels.count(label) > 1:
            hint = f"give one a label of its own, as in mine={variant.method}"
            raise UserError(f"two methods are labelled {label!r}: {hint}")
    if not unique:
        raise UserError("methods: name at least one; see `fedasmu list methods`")
    return unique


def starting_from(best: Mapping[str, Sequence[str]], variants: Iterable[Variant]) -> list[Variant]:
    """The variants with the settings that an earlier sweep found best for each, or for the one that it was made from.

    What one says itself stays as it is.
    """
    return [replace(one, changes=(*best.get(one.label, best.get(one.base, ())), *one.changes)) for one in variants]


def split(text: str, option: str) -> list[str]:
    """Split at the commas that are outside of all brackets. `option` is what a message begins with."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise UserError(f"{option} {text}: the brackets do not match")
    return [part.strip() for part in parts if part.strip()]


def key_value(text: str, option: str, implied: str = "") -> tuple[str, str]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise UserError(f"{option} {text}: write it as key=value")
    return (key if "." in key or not implied else implied + key), value


def once(keys: Sequence[str], option: str) -> None:
    """Refuse a key that is given two values: the one that is not taken would be lost without a word."""
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{option} {key} is given twice")


Axis = tuple[str, tuple[str, ...]]


def axis(text: str, option: str) -> Axis:
    """`key=v1,v2`: a key of the recipe, or of one method as in fedasync.alpha, with the values it takes."""
    key, values = key_value(text, option)
    return with_section(key, option), tuple(split(values, option))


def axes_of(grid: Mapping[str, Sequence[Any]], option: str) -> list[Axis]:
    """The same of a table, as Python has it: {"local.lr": [0.01, 0.03]}."""
    found: list[Axis] = []
    if not isinstance(grid, Mapping):
        raise UserError(f"{option}: {grid!r} is no table; for instance {{'local.lr': [0.01, 0.03]}}")
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UserError(f"{option} {key}: give the values to try as a list, not {values!r}")
        found.append((with_section(key, option), tuple(value_text(value) for value in values)))
    return found


def check_left_to_studies(key: str, option: str) -> None:
    """Refuse a key of a recipe that a study itself decides."""
    if key in ELSEWHERE:
        raise UserError(f"{option} {key}: {ELSEWHERE[key]}")


def with_section(key: str, option: str) -> str:
    """The key, if a study can vary it."""
    check_left_to_studies(key, option)
    if "." in key:
        return key
    found = meant(key)
    if key in found:
        raise UserError(f"{option} {key}: it is of no section, and the same for all runs of a study")
    own = [f"algorithm.{key}"] if any(key in method.model_fields for method in ALGORITHMS) or not found else []
    raise UserError(f"{option} {key}: name the section too, as in {' or '.join([*own, *found])}")


def crossed(variants: Iterable[Variant], axes: Sequence[Axis], option: str) -> list[Variant]:
    """Every variant with every combination of values. A key of a method applies to the methods that have it."""
    once([key for key, _ in axes], option)
    found: list[Variant] = []
    used: set[str] = set()
    for variant in variants:
        mine = [(own, values) for key, values in axes if (own := _own_key(variant, key, used)) is not None]
        combinations = itertools.product(*([(key, value) for value in values] for key, values in mine))
        found += [variant.changed(combination) for combination in combinations]
    for key, _ in axes:
        if key not in used:
            raise UserError(f"{option} {key}: none of the methods has it")
    return distinct(found)


def _own_key(variant: Variant, key: str, used: set[str]) -> str | None:
    section, _, name = key.partition(".")
    if section in (variant.method, variant.label):
        section = "algorithm"
    elif section in ORDER:
        return None
    if section == "algorithm" and name not in _settings_of(variant.method):
        return None
    used.add(key)
    return f"{section}.{name}"


def _settings_of(method: str) -> set[str]:
    try:
        return set(named(method).model_fields)
    except ValueError as error:
        raise UserError(f"methods: {method}: {error}") from None
