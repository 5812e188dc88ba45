"""What there is to choose from, as rows for a table or for JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedasmu.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedasmu.algorithms import Algorithm

Rows = list[dict[str, Any]]


def methods() -> Rows:
    from fedasmu.algorithms import ALGORITHMS

    return [
        {"name": name, "kind": method.kind, "description": _described(method, name)}
        for method in ALGORITHMS
        for name in method.names()
    ]


def _described(method: type[Algorithm], name: str) -> str:
    """The first line of its docstring, or what a further name of it stands for."""
    if name not in method.presets:
        return (method.__doc__ or "").splitlines()[0]
    settings = ", ".join(_set(method.presets[name]))
    return f"{method.names()[0]} with {settings}" if settings else f"another name of {method.names()[0]}"


def models() -> Rows:
    from fedasmu.models import MODELS

    return [
        {"name": model.name, "description": model.about, "options": [option.name for option in model.options]}
        for model in MODELS
    ]


def datasets() -> Rows:
    from fedasmu.data import DATASETS, is_here

    return [{"name": entry.name, "description": entry.summary, "here": is_here(entry.name)} for entry in DATASETS]


def recipes() -> Rows:
    from fedasmu.settings.packaged import RECIPES

    rows = []
    for path in sorted(RECIPES.glob("*.toml")):
        text = path.read_text()
        model, method = tomllib.loads(text).get("model"), tomllib.loads(text)["algorithm"]["name"]
        description = text.splitlines()[0].removeprefix("# ")
        rows.append({"name": path.stem, "description": description, "model": _model(model), "method": method})
    return rows


def _model(given: Any) -> str:
    """A recipe's model as one text: its name, and its options if it is a table."""
    table = {"name": given} if isinstance(given, str) else dict(given)
    return ", ".join([table.pop("name"), *_set(table)])


def fleets() -> Rows:
    from fedasmu.settings.fleets import PRESETS_OF_FLEETS

    rows = []
    for name, (about, keys) in PRESETS_OF_FLEETS.items():
        rows.append({"name": name, "description": about, "settings": ", ".join(_set(keys))})
    return rows


def keys(method: str = "") -> Rows:
    """Every key of a recipe but those of [algorithm], which are the method's own: with a method, these."""
    from fedasmu.settings.config import Config

    return list(_keys(Config, "")) if not method else settings_of(method)


def settings_of(method: str) -> Rows:
    """A method's settings, with the values that stand under this name of it."""
    from fedasmu.algorithms import named

    try:
        chosen = named(method)
    except ValueError as error:
        raise UserError(f"list keys {method}: {error}") from None
    values = {key: _written(value) for key, value in chosen.presets.get(method, {}).items()}
    rows = [{**row, "default": values.get(row["key"], row["default"])} for row in _keys(chosen, "")]
    return [row for row in rows if row["key"] != "name"]


def _keys(section: type[BaseModel], prefix: str) -> Iterator[dict[str, Any]]:
    for name, schema in section.model_json_schema()["properties"].items():
        inner = section.model_fields[name].annotation
        if name == "algorithm":
            continue
        if isinstance(inner, type) and hasattr(inner, "model_fields"):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            about = schema.get("description", "")
            yield {
                "key": prefix + name,
                "default": _written(schema["default"]),
                "allowed": _allowed(schema),
                "meaning": about,
            }


def _set(keys: Mapping[str, Any]) -> Iterator[str]:
    """Keys with their values, as a recipe has them."""
    return (f"{key} = {_written(value)}" for key, value in keys.items())


def _written(value: Any) -> str:
    return json.dumps(value).replace("null", "none").replace("Infinity", "inf")


def _allowed(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words: what kind of value, and within which limits."""
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return _kind(schema) + "".join(f", {sign} {schema[limit]}" for limit, sign in signs.items() if limit in schema)


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_allowed(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        inner = schema["items"] if "items" in schema else schema["prefixItems"][0]
        return f"list of {_allowed(inner)}"
    words = {"integer": "whole number", "string": "text", "boolean": "true, false", "null": "none"}
    return str(schema.get("format") or words.get(schema["type"], schema["type"]))


LISTINGS: dict[str, Callable[[], Rows]] = {
    "methods": methods,
    "models": models,
    "datasets": datasets,
    "recipes": recipes,
    "fleets": fleets,
}
