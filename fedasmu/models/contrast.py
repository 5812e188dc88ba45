"""What MOON adds to the loss: features compared under three weights. The native engine computes the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from fedasmu.models.features import forward_with_features
from fedasmu.vector import Layout


def contrastive(features: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """mean of -log(e^a / (e^a + e^b)), a = cos(z, z_received) / T, b = cos(z, z_previous) / T"""
    a = cosine_similarity(features, received) / temperature
    b = cosine_similarity(features, previous) / temperature
    return softplus(b - a).mean()


class Features(nn.Module):
    """The features of a network as a network, so that they can be asked for under other weights."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.layout = inner, Layout.of(inner)

    def forward(self, inputs: Tensor) -> Tensor:
        return forward_with_features(self.inner, inputs)[1]

    def under(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """In evaluation mode, and without gradients."""
        layout, vector = self.layout, vector.to(inputs.device)
        tensors = {f"inner.{entry.name}": entry.view(vector) for entry in (*layout.parameters, *layout.buffers)}
        with torch.no_grad():
            features: Tensor = functional_call(self.eval(), tensors, inputs)
        self.train()
        return features


@dataclass(frozen=True)
class Contrast:
    """The objective: cross-entropy + mu * contrastive. It travels to worker processes, so it holds plain vectors."""

    received: Tensor
    previous: Tensor
    mu: float
    temperature: float

    def __call__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        logits, features = forward_with_features(module, inputs)
        frozen = Features(module)
        received, previous = frozen.under(self.received, inputs), frozen.under(self.previous, inputs)
        return cross_entropy(logits, targets) + self.mu * contrastive(features, received, previous, self.temperature)
