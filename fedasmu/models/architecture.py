"""What a catalogue of networks is made of: entries, their options, and what is checked of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedasmu.errors import did_you_mean


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of a network; with `choices`, nothing else is accepted."""

    name: str
    default: Any
    about: str
    choices: tuple[Any, ...] = ()

    def check(self, model: str, value: Any) -> None:
        # Types are compared as well: True == 1 and 0.0 == 0 would otherwise slip through.
        if self.choices and not any(type(value) is type(choice) and value == choice for choice in self.choices):
            allowed = " or ".join(map(repr, self.choices))
            raise ValueError(f"{model}: option {self.name!r} must be {allowed}, got {value!r}")
        if self.choices or self.default is None:
            return
        kinds = (int, float) if isinstance(self.default, float) else (type(self.default),)
        if type(value) not in kinds:
            raise ValueError(f"{model}: option {self.name!r} must be {kinds[-1].__name__}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network by name. `factory` is a "module:function" path, so that torch loads only when one is built."""

    name: str
    factory: str
    about: str
    options: tuple[Option, ...] = ()

    def check(self, options: Mapping[str, Any]) -> None:
        known = {option.name: option for option in self.options}
        for name, value in options.items():
            if name not in known:
                raise unknown(f"option of {self.name}", name, known)
            known[name].check(self.name, value)


def unknown(what: str, given: str, allowed: Iterable[str], also: str = "") -> ValueError:
    """An error that names what was given, what is allowed, and the closest of these."""
    names = list(allowed)
    listed = f"(allowed: {', '.join(names) or 'none'}{also})"
    return ValueError(f"unknown {what}: {given!r}{did_you_mean(given, names)} {listed}")


def parameters(factory: Callable[..., Any]) -> set[str]:
    """The names of what a user's factory can be given."""
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # callables written in C need not have a signature
        return set()


def check_signature(path: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """A user's factory must accept exactly these options; say so before it fails somewhere inside."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # callables written in C need not have one
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        parameters = signature.parameters.values()
        allowed = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        strange = [name for name in options if name not in allowed]
        if strange and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise unknown(f"option of {path}", strange[0], allowed) from error
        given = f"with the options {sorted(options)}" if options else "without arguments"
        raise ValueError(f"the model {path!r} cannot be called {given}: {error}") from error
