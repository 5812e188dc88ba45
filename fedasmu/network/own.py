"""A device's own examples: where they come from, whether they can be trained on, and whether they are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from fedasmu.data import npz
from fedasmu.data.description import TextOptions
from fedasmu.data.text import encode, tokens
from fedasmu.errors import UserError, reading
from fedasmu.imports import load
from fedasmu.network.terms import Text

Source = Callable[[], tuple[Any, Any]]
"""Gives a device's inputs and targets, as tensors or numpy arrays; inputs may be texts."""

Inputs = Tensor | Sequence[str]


class Own:
    """Examples that are asked for again before each task."""

    def __init__(self, data: Source | str) -> None:
        self._source = source(data) if isinstance(data, str) else data
        self.name = f"--data {data}" if isinstance(data, str) else "data"  # in messages
        self.inputs, self.targets = examples(self._source, self.name)

    def __len__(self) -> int:
        return len(self.targets)

    def renew(self) -> bool:
        """Ask again. Whether they are others now."""
        inputs, targets = examples(self._source, self.name)
        if _equal(inputs, self.inputs) and torch.equal(targets, self.targets):
            return False
        self.inputs, self.targets = inputs, targets
        return True

    def tensors(self, text: Text | None, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """As the network takes them: texts as numbers of the server's words."""
        if isinstance(self.inputs, Tensor):
            if words and (
                self.inputs.is_floating_point() or not 0 <= self.inputs.min() <= self.inputs.max() < len(words)
            ):
                raise UserError(
                    f"{self.name}: the inputs must be texts, or numbers of the run's words, 0..{len(words) - 1}"
                )
            return self.inputs, self.targets
        if text is None:
            raise UserError(f"{self.name}: the inputs are texts, but this run is not trained on texts")
        options = TextOptions(len(words), text.length, text.padding, text.truncation)
        rows = np.zeros((len(self.inputs), text.length), np.int32)
        encode((tokens(one) for one in self.inputs), words, options, rows)
        return torch.from_numpy(rows), self.targets


def source(text: str) -> Source:
    """What `--data` names: a file, or a function as package.module:name."""
    path = Path(text)
    if path.suffix in (".npz", ".safetensors"):
        return _File(path)
    if ":" not in text:
        raise UserError(f"--data {text}: give an .npz or .safetensors file, or a function as package.module:name")
    try:
        found: Source = load(text)
    except ValueError as error:
        raise UserError(f"--data {text}: {error}") from None
    return found


def examples(given: Source, name: str = "data") -> tuple[Inputs, Tensor]:
    """The device's data as tensors, if they can be that; texts stay texts."""
    try:
        inputs, targets = given()
        if isinstance(targets, np.ndarray) and targets.dtype.kind in "US":
            raise UserError(f"{name}: targets are texts; must be whole numbers, the run's classes from 0 on")
        inputs, targets = _inputs(inputs), torch.as_tensor(targets)
        counts = len(inputs), len(targets)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}: must give (inputs, targets) as arrays: {error}") from error
    if counts[0] != counts[1]:
        raise UserError(f"{name}: {counts[0]} inputs and {counts[1]} targets; need as many of each")
    if not counts[0]:
        raise UserError(f"{name}: holds no examples")
    if targets.is_floating_point() or targets.dim() != 1:
        kind, shape = str(targets.dtype).removeprefix("torch."), tuple(targets.shape)
        raise UserError(f"{name}: targets must be whole numbers, one for each input; these are {kind} of shape {shape}")
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise UserError(f"{name}: the inputs are not all finite numbers")
    return inputs, targets.to(torch.int64)


def _inputs(given: Any) -> Inputs:
    if isinstance(given, np.ndarray) and given.dtype.kind == "U":
        given = given.tolist()
    if isinstance(given, list | tuple) and given and all(isinstance(one, str) for one in given):
        return list(given)
    inputs = torch.as_tensor(given)
    if inputs.dtype not in (torch.uint8, torch.int64, torch.float32):
        inputs = inputs.to(torch.float32 if inputs.is_floating_point() else torch.int64)
    return inputs


def _equal(one: Inputs, other: Inputs) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one, other))
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other


class _File:
    """Inputs and targets of a file, which is read again when it has changed. Nothing in it is executed."""

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, f"--data {path}"
        self._seen: tuple[int, int] | None = None
        self._read: tuple[Any, Any] = None, None

    def __call__(self) -> tuple[Any, Any]:
        with reading(self._name):
            status = self._path.stat()
            if (seen := (status.st_mtime_ns, status.st_size)) != self._seen:
                self._read, self._seen = self._arrays(), seen
            return self._read

    def _arrays(self) -> tuple[Any, Any]:
        if self._path.suffix == ".npz":
            arrays = npz.read(self._path, self._name)
        else:
            try:
                arrays = safetensors.numpy.load_file(self._path)
            except safetensors.SafetensorError as error:
                raise UserError(f"{self._name}: damaged, or no safetensors file: {error}") from None
            npz.check_pair(arrays, self._name)
        return arrays["inputs"], arrays["targets"]
