"""FedASMU: asynchronous federated learning with staleness-aware model update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedasmu.data.federated import FederatedData as FederatedData
    from fedasmu.experiment import Experiment as Experiment
    from fedasmu.result import Result as Result
    from fedasmu.result import load_runs as load_runs

_HOMES = {"Experiment": "experiment", "FederatedData": "data.federated", "Result": "result", "load_runs": "result"}


def __getattr__(name: str) -> Any:
    """Import on first use: `import fedasmu` and `fedasmu --help` need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedasmu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fedasmu.{_HOMES[name]}"), name)
