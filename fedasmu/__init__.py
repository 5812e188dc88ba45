"""FedASMU: asynchronous federated learning with staleness-aware model update."""

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path

__version__ = "0.1.0"

_HOMES = {
    alias.name: str(node.module)
    for node in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, _ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import on first use: `import fedasmu` and `fedasmu --help` need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedasmu' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
