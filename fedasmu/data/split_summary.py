"""What a split looks like: how many examples and which classes each device has, in numbers and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fedasmu.data.reading import Array

_BINS = 10


@dataclass(frozen=True)
class Summary:
    counts: Array  # (devices, classes): examples
    sizes: tuple[int, ...]  # examples of each device
    entropies: tuple[float, ...]  # of each device's labels, in bits: 0 for one class, log2(classes) for all alike
    mean_entropy: float
    histogram: tuple[tuple[int, int, int], ...]  # (from, to, devices): how many devices have so many examples


def summary(parts: Sequence[Tensor], targets: Tensor, classes: int) -> Summary:
    labels = targets.numpy()
    counts = np.stack([np.bincount(labels[part.numpy()], minlength=classes) for part in parts])
    sizes = counts.sum(axis=1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    logarithms = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    entropies = np.abs((shares * logarithms).sum(axis=1))  # abs: no minus zero
    return Summary(
        counts=counts,
        sizes=tuple(sizes.tolist()),
        entropies=tuple(entropies.tolist()),
        mean_entropy=float(entropies.mean()),
        histogram=_histogram(sizes),
    )


def _histogram(sizes: Array) -> tuple[tuple[int, int, int], ...]:
    """Bins of equal width between round numbers of examples, both ends included."""
    low, high = int(sizes.min()), int(sizes.max())
    width = max(1, -(-(high - low + 1) // _BINS))
    bins = (sizes - low) // width
    return tuple(
        (low + at * width, low + (at + 1) * width - 1, int((bins == at).sum())) for at in range(int(bins.max()) + 1)
    )


def draw(parts: Sequence[Tensor], targets: Tensor, classes: int, path: Path) -> None:
    """A picture of a split: the classes of each device as stacked bars, and how many devices have how many examples."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    found = summary(parts, targets, classes)
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    bars, sizes = figure.subplots(1, 2, width_ratios=[3, 1])
    colours = colormaps["tab10" if classes <= 10 else "turbo"]
    edges = np.arange(len(parts) + 1) - 0.5
    tops = np.cumsum(found.counts, axis=1)
    for label in range(classes):
        below = tops[:, label] - found.counts[:, label]
        colour = colours(label if classes <= 10 else label / (classes - 1))
        bars.stairs(tops[:, label], edges, baseline=below, fill=True, color=colour, label=str(label))
    bars.set(xlabel="device", ylabel="examples", xlim=(edges[0], edges[-1]), ylim=(0, None))
    bars.set_title(f"classes of each device: mean entropy {found.mean_entropy:.2f} of {np.log2(classes):.2f} bits")
    if classes <= 10:
        bars.legend(title="class", ncols=2, fontsize="small")
    middles = [(first + last) / 2 for first, last, _ in found.histogram]
    widths = [last - first + 1 for first, last, _ in found.histogram]
    sizes.bar(middles, [devices for _, _, devices in found.histogram], width=widths, edgecolor="white")
    sizes.set(xlabel="examples of a device", ylabel="devices", title="sizes")
    figure.savefig(path, dpi=120)
