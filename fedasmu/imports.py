"""A user's own model, data or method, named in a recipe as "package.module:name".

A recipe that names code is a program. What a file names is loaded only where the user has agreed to it (`agree`); what
a user types on the command line or passes in Python needs no asking.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedasmu.errors import UserError

SECTIONS = ("model", "data", "algorithm")  # whose name may be that of code
KEYS = (("local", "loss"), ("evaluate", "metric"))  # of other sections, which may too
INSIDE = "<locals>"  # in the name of a class that a function has made
GO_ON = "Experiment(the same settings).run(the same directory, resume=True) goes on with a run of it"
INSTALLED = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
AllowCode = bool | Collection[str]  # all of it, or what is of these names


def named_code(table: Mapping[str, Any]) -> dict[str, str]:
    """The sections and keys of a recipe that name code, with what they name."""
    names = {section: _name(table.get(section)) for section in SECTIONS}
    for section, key in KEYS:
        inner = table.get(section)
        names[f"{section}.{key}"] = str(inner.get(key, "")) if isinstance(inner, Mapping) else ""
    return {section: name for section, name in names.items() if ":" in name}


def _name(section: Any) -> str:
    return str(section.get("name", "") if isinstance(section, Mapping) else section)


def agree(code: Mapping[str, str], source: Path, allow_code: AllowCode) -> None:
    """Refuse a file that names code which the user has not agreed to."""
    trusted: Collection[str] = () if isinstance(allow_code, bool) else allow_code
    strange = [
        f"{key if '.' in key else f'{key}.name'} = {name!r}"
        for key, name in code.items()
        if allow_code is not True and name not in trusted
    ]
    if strange:
        raise UserError(
            f"{source} names code, which would run on this machine: {', '.join(strange)}. "
            "If you trust it, say so: add --allow-code (in Python: allow_code=True)"
        )


def load(path: str) -> Any:
    """The function or class at "package.module:name". Modules in the current folder are found too."""
    module_name, _, attribute = path.partition(":")
    if INSIDE in attribute:
        raise ValueError(f"{path!r} stands inside a function, where it is not found again; {GO_ON}")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{path!r} is not of the form package.module:name")
    if _of_python(module_name):
        raise ValueError(f"{path!r} belongs to Python itself; name a function or class of your own")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last: nothing there may stand in for a module that is installed
    try:
        module = import_module(module_name)
    except Exception as error:
        absent = f"{module_name}.".startswith(f"{getattr(error, 'name', None)}.")
        why = f"there is no module of that name in {here}, nor where Python looks" if absent else blame(error)
        raise ValueError(f"cannot import {module_name!r} for {path!r}: {why}") from error
    if attribute not in vars(module):
        there = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
        public = [name for name, value in there.items() if getattr(value, "__module__", None) == module_name]
        raise ValueError(f"{module_name} has no {attribute!r}; it has: {', '.join(public) or 'nothing callable'}")
    found = vars(module)[attribute]
    _check_home(found, module_name, attribute)
    return found


def _check_home(found: Any, module: str, attribute: str) -> None:
    """It is called with whatever the recipe says: so it must be meant for that, and not some function at hand."""
    if not callable(found):
        raise ValueError(f"{module}:{attribute} is not callable: name a function or a class")
    home = getattr(found, "__module__", None)
    if home != module:
        there = vars(sys.modules[home]).get(attribute) if home in sys.modules and not _of_python(home) else None
        hint = f"write {home}:{attribute}" if there is found else "give it a def or a class there"
        raise ValueError(f"{module}:{attribute} is not defined in {module}: {hint}")


def _of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def blame(error: BaseException) -> str:
    """An exception of a user's code in one line, with the place it comes from: the last that is neither ours, nor
    Python's, nor a library's."""
    there = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in there if not frame.filename.startswith(INSTALLED)]
    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in (own or there)[-1:])
    return f"{type(error).__name__}: {error}{place}"
