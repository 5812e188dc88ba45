"""Recipes: a TOML file or a name, with some keys changed, becomes checked settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedasmu.algorithms import ALGORITHMS, NAMES, Algorithm, FedAvg, named, settings
from fedasmu.errors import UserError
from fedasmu.imports import AllowCode, agree, named_code
from fedasmu.settings.config import PACINGS, Config, Data
from fedasmu.settings.fleets import PRESETS_OF_FLEETS
from fedasmu.settings.mistakes import Mistake, mistakes
from fedasmu.settings.packaged import find

Changes = Iterable[str] | Mapping[str, Any]
"""Keys to change: as texts "section.key=value", or as {"section.key": value}."""


def load(recipe: str | Path, changes: Changes = (), option: str = "--set", *, allow_code: AllowCode = False) -> Config:
    """A recipe from its file or by its name, with some keys changed. `option` is where the user wrote these.

    Code that the file names, and that is not replaced, must be allowed.
    """
    path = find(recipe)
    table, changes = read(path), texts(changes)
    replaced = {key_of(text).removesuffix(".name") for text in changes}
    agree({key: name for key, name in named_code(table).items() if key not in replaced}, path, allow_code)
    return parse(override(table, changes, option), str(path), changes, option)


def checked(
    given: Config | Mapping[str, Any] | str | Path, changes: Changes = (), allow_code: AllowCode = False
) -> Config:
    """Settings in whichever form they are given in Python."""
    if isinstance(given, str | Path):
        return load(given, changes, "changes", allow_code=allow_code)
    changes = texts(changes)
    if not isinstance(given, Config | Mapping):
        raise UserError(f"settings: a recipe's name, its file or a table of its sections, not {given!r}")
    if not isinstance(given, Config):
        return parse(override(dict(given), changes, "changes"), "the settings", changes, "changes")
    if changes:
        raise UserError(
            f"changes: {', '.join(changes)}: these settings are checked already; change the recipe they are of"
        )
    return given


def read(path: Path) -> dict[str, Any]:
    """The table in a recipe's file, unchecked."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: the recipe cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    table.setdefault("name", path.stem)
    return table


def texts(changes: Changes) -> list[str]:
    """Changes as `section.key=value`, one text each."""
    if not isinstance(changes, Mapping):
        return [changes] if isinstance(changes, str) else list(changes)
    for section, value in changes.items():
        if isinstance(value, Mapping) and value:
            key, inner = next(iter(value.items()))
            raise UserError(f"changes: {section} is a section; name its keys, as in {{'{section}.{key}': {inner!r}}}")
    return [f"{key}={value_text(value)}" for key, value in changes.items()]


def value_text(value: Any) -> str:
    """A value as it is written after `section.key=`."""
    if value is None:
        return "none"
    if isinstance(value, Real) and not isinstance(value, bool):  # numpy's numbers too
        value = int(value) if isinstance(value, Integral) else float(value)
    try:
        return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")
    except TypeError:
        kind = type(value).__name__
        raise UserError(f"{value!r}: a recipe holds numbers, texts, lists and tables, not a {kind}") from None


def key_of(change: str) -> str:
    """local.lr of local.lr=0.1"""
    return change.partition("=")[0].strip()


def override(table: dict[str, Any], changes: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Apply `section.key=value`, one after the other.

    A new method drops the settings of the one it replaces, new data the stand-in for the old ones, a new file the old
    one's digest. A preset goes before what the recipe says of its keys.
    """
    if isinstance(table.get("algorithm"), str):
        table = table | {"algorithm": {"name": table["algorithm"]}}
    pairs = [(*_pair(text, option), text) for text in changes]
    if any(keys == ["data", "name"] and value != _name(table, "data", Data().name) for keys, value, _ in pairs):
        table = _without(table, "data", {"fallback"})
    for keys, _, _ in pairs:
        table = _without(table, keys[0], {f"{keys[-1]}_sha256"})
    for keys, value, text in pairs:
        if keys == ["algorithm"]:
            keys = ["algorithm", "name"]
        if keys == ["algorithm", "name"] and _name(table, "algorithm") != value:
            table = table | {"algorithm": _kept(table.get("algorithm"), value)}
        if keys[1:] == ["preset"]:
            table = _without(table, keys[0], _decided(keys[0], value))
        table = _put(table, keys, value, f"{option} {text}")
    return table


def parse(
    table: Mapping[str, Any], source: str = "the settings", changes: Iterable[str] = (), option: str = "--set"
) -> Config:
    """Validate a whole table. Every mistake is listed, each with its key, its value and what is allowed.

    Those in `changes` are the option's, all others the source's.
    """
    method, found = _method(table.get("algorithm"))
    try:
        # Where the method failed its own checks, any other stands in, so that the other sections are checked too.
        config = Config.model_validate({**table, "algorithm": method or FedAvg()})
    except ValidationError as error:
        found += mistakes(error, type(method or FedAvg()))
    if found:
        changed = {key_of(text) for text in changes}
        raise UserError(_listed(found, source, changed, option))
    return config


def _method(given: Any) -> tuple[Algorithm | None, list[Mistake]]:
    """The method of a table: by its name, as a table, as a class or as an object. With what is wrong with it."""
    if isinstance(given, type) and issubclass(given, Algorithm):
        try:
            given = given.model_validate({})
        except ValidationError as error:
            return None, mistakes(error, given, "algorithm.")
    if isinstance(given, Algorithm):
        return given.model_copy(update={"name": _address(type(given)) or given.name}), []
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or "name" not in table:
        return None, [Mistake("algorithm", f"algorithm.name is missing (known: {', '.join(NAMES)})")]
    try:
        return settings(table), []
    except ValidationError as error:
        return None, mistakes(error, named(str(table["name"])), "algorithm.")
    except ValueError as error:
        return None, [Mistake("algorithm.name", f"algorithm.name = {table['name']!r}: {error}")]


def _address(method: type[Algorithm]) -> str:
    """By which a run directory names a user's own method; empty for ours."""
    return "" if method in ALGORITHMS else f"{method.__module__}:{method.__qualname__}"


def _listed(found: list[Mistake], source: str, changed: set[str], option: str) -> str:
    """The mistakes, each below where the user made it."""

    def is_changed(mistake: Mistake) -> bool:
        wrong = f"{mistake.key}."
        return any(wrong.startswith(f"{key}.") or f"{key}.".startswith(wrong) for key in changed)

    places = {option: list(filter(is_changed, found)), source: [one for one in found if not is_changed(one)]}
    return "\n".join(
        "\n".join([f"{place}:", *(f"  {mistake}" for mistake in those)]) for place, those in places.items() if those
    )


def _pair(text: str, option: str) -> tuple[list[str], Any]:
    dotted, equals, value = text.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"{option} {text}: write it as section.key=value, for instance {option} local.lr=0.01")
    try:
        return keys, _value(value.strip())
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise UserError(f"{option} {text[:40]}...: {error}") from None


def _value(text: str) -> Any:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], keys: list[str], value: Any, text: str) -> dict[str, Any]:
    key, *rest = keys
    if not rest:
        return table | {key: value}
    inner = table.get(key, {})
    if key == "model" and isinstance(inner, str):
        inner = {"name": inner}
    if not isinstance(inner, dict):
        raise UserError(f"{text}: {key} is not a section")
    return table | {key: _put(inner, rest, value, text)}


def _without(table: dict[str, Any], section: str, dropped: set[str]) -> dict[str, Any]:
    """The table without these keys of a section."""
    inner = table.get(section)
    if not isinstance(inner, dict):
        return table
    return table | {section: {key: value for key, value in inner.items() if key not in dropped}}


def _name(table: Mapping[str, Any], section: str, default: Any = None) -> Any:
    inner = table.get(section)
    return inner.get("name", default) if isinstance(inner, dict) else default


def _kept(algorithm: Any, name: Any) -> dict[str, Any]:
    """What a method keeps under another of its names: all but what its names decide. Another method keeps nothing."""
    before = str(algorithm.get("name")) if isinstance(algorithm, dict) else ":"
    if ":" in before:  # it is not loaded just to be replaced
        return {}
    try:
        method = named(before)
        if named(str(name)) is not method:
            return {}
    except ValueError:  # a wrong name is reported later, with all other mistakes
        return {}
    decided = {key for preset in method.presets.values() for key in preset}
    return {key: value for key, value in algorithm.items() if key not in decided}


def _decided(section: str, preset: Any) -> set[str]:
    """The keys that a preset, or a list of them, sets."""
    known = {"fleet": {name: keys for name, (_, keys) in PRESETS_OF_FLEETS.items()}, "pacing": PACINGS}
    chosen = preset if isinstance(preset, list) else [preset]
    return {key for name in chosen for key in known.get(section, {}).get(str(name), {})}
