"""Seeded initialisation, and the scheme of He et al., "Delving deep into rectifiers", ICCV 2015."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts from `seed`; afterwards it is as it was before."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would also reseed every accelerator, which nothing here restores.
        torch.default_generator.manual_seed(seed)
        yield


def he_throughout(network: nn.Sequential) -> None:
    """Normal weights of deviation sqrt(2 / inputs) and zero biases for every layer but the last.

    A signal then passes all rectifiers as strong as it came. The last layer has none behind it: from the same
    distribution its outputs, and so the first losses, would be too large.
    """
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def he_normal(module: nn.Module) -> None:
    """Normal weights of deviation sqrt(2 / (k k out)) and zero biases for every convolution in `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
