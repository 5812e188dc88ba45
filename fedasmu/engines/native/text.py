"""Networks over texts: filters slide over the words' vectors, and the strongest answer of each is a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedasmu.engines.native.graph import Unsupported

MOST_TERMS = 2**26  # the engine keeps a number for each word, filter and place in its window: 256 MB


@dataclass(frozen=True)
class Window:
    """Filters of one width. The offsets say where their weight and bias sit in the vector (-1: no bias)."""

    width: int
    filters: int
    weight: int
    bias: int
    relu: bool = False
    strongest: bool = False  # of each filter's answers only the largest is left


@dataclass(frozen=True)
class Text:
    """The words' vectors; then a window over them; then the features of several windows, side by side."""

    length: int
    vocabulary: int
    depth: int
    vectors: int  # offset in the vector
    padding: int  # the word whose vector does not learn, -1: all do
    turned: bool = False  # to (depth, length), as Conv1d reads it
    windows: tuple[Window, ...] = ()

    @property
    def features(self) -> int | None:
        """How many there are, or None if the windows have not come to their strongest answers yet."""
        done = self.windows and all(window.strongest for window in self.windows)
        return sum(window.filters for window in self.windows) if done else None


def embedded(module: nn.Embedding, shape: tuple[int, ...], offsets: Mapping[int, int]) -> Text:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        raise Unsupported("the Embedding has max_norm, scale_grad_by_freq or sparse")
    padding = -1 if module.padding_idx is None else module.padding_idx
    return Text(shape[0], module.num_embeddings, module.embedding_dim, offsets[id(module.weight)], padding)


def after(text: Text, operation: Any, sizes: Sequence[Any], offsets: Mapping[int, int]) -> Any:
    """What a module, function or method makes of a text; `Unsupported` if the engine does not know it."""
    step = (operation, *sizes)
    if not text.windows and not text.turned and step in _TURNS:
        return replace(text, turned=True)
    if not text.windows and text.turned and type(operation) is nn.Conv1d:
        return replace(text, windows=(_window(text, operation, offsets),))
    if text.windows and (isinstance(operation, nn.ReLU) or operation in _RELUS):
        return _changed(text, relu=True)
    if text.windows and step in _LARGEST:
        return _changed(text, strongest=True)
    if text.windows and step in _LARGEST_AND_WHERE:
        return _changed(text, strongest=True), None
    name = type(operation).__name__ if isinstance(operation, nn.Module) else getattr(operation, "__name__", operation)
    raise Unsupported(f"{name} of a text is not known to the native engine")


def joined(texts: Sequence[Any], dim: int = 0) -> Text:
    """The features of several windows over one text."""
    for text in texts:
        if not isinstance(text, Text) or not text.windows or replace(text, windows=texts[0].windows) != texts[0]:
            raise Unsupported("the network is not a chain: it joins something else than windows over one text")
    if dim not in (1, -1):
        raise Unsupported("the network joins samples, not features")
    first: Text = texts[0]
    return replace(first, windows=tuple(window for text in texts for window in text.windows))


def _window(text: Text, module: nn.Conv1d, offsets: Mapping[int, int]) -> Window:
    width = module.kernel_size[0]
    if (module.stride, module.dilation, module.groups) != ((1,), (1,), 1) or module.padding not in ((0,), "valid"):
        raise Unsupported("a Conv1d has a stride, a dilation, groups or a padding")
    if module.in_channels != text.depth or width > text.length:
        raise Unsupported(f"a Conv1d does not fit texts of {text.length} words of {text.depth} numbers")
    if text.vocabulary * width * (module.out_channels + 15) > MOST_TERMS:
        raise Unsupported(
            f"a Conv1d of {module.out_channels} filters over {text.vocabulary:,} words takes too much memory"
        )
    bias = -1 if module.bias is None else offsets[id(module.bias)]
    return Window(width, module.out_channels, offsets[id(module.weight)], bias)


def _changed(text: Text, **flags: bool) -> Text:
    return replace(text, windows=tuple(replace(window, **flags) for window in text.windows))


_TURNS: tuple[Any, ...] = (
    *((name, *axes) for name in ("transpose", torch.transpose) for axes in ((1, 2), (2, 1), (-1, -2), (-2, -1))),
    *((name, *axes) for name in ("permute", torch.permute) for axes in ((0, 2, 1), ((0, 2, 1),))),
)
_RELUS = ("relu", "relu_", torch.relu, functional.relu)
_LARGEST = tuple((name, axis) for name in ("amax", torch.amax) for axis in (2, -1))
_LARGEST_AND_WHERE = tuple((name, axis) for name in ("max", torch.max) for axis in (2, -1))
