"""A user's own model, data or method, named in a recipe as "package.module:name"."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def load(path: str) -> Any:
    """The object at "package.module:name". Modules in the current folder are found too."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{path!r} is not of the form package.module:name")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ValueError(f"cannot import {module_name!r} for {path!r}: {error}") from error
    if attribute not in vars(module):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"{module_name} has no {attribute!r}; it has: {', '.join(public) or 'nothing callable'}")
    return vars(module)[attribute]
