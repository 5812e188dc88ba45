"""What a network knows just before it decides: the input of its last linear layer.

The convention, for our networks and a user's alike: the last `nn.Linear` registered in a module is its classifier, and
its output is the module's output. MOON (Li et al., "Model-contrastive federated learning", CVPR 2021) compares these
features.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedasmu.models.initialise import seeded


def classifier(module: nn.Module) -> tuple[str, nn.Linear]:
    """The name and the module of the last linear layer."""
    linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(f"{type(module).__name__} has no nn.Linear, so the features before its last one are undefined")
    return linear[-1]


def forward_with_features(module: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, features) of one forward pass; gradients flow through both."""
    name, layer = classifier(module)
    seen: list[tuple[Tensor, Tensor]] = []

    def record(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        seen.append((arguments[0], output))

    handle = layer.register_forward_hook(record)
    try:
        logits: Tensor = module(inputs)
    finally:
        handle.remove()
    # A layer registered last but used earlier, or followed by anything, would silently give other features.
    if len(seen) != 1 or seen[0][1] is not logits:
        raise ValueError(f"the last linear layer {name!r} of {type(module).__name__} does not yield its output")
    return logits, seen[0][0]


def with_projection(module: nn.Module, *, dimensions: int = 256, seed: int) -> nn.Module:
    """The module, its classifier now behind MOON's projection head: d -> d, ReLU, d -> `dimensions`.

    The head takes the classifier's place in `module`, so by the convention above its output is the new feature.
    """
    name, last = classifier(module)
    width = last.in_features
    with seeded(seed):
        head = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, dimensions),
            nn.Linear(dimensions, last.out_features, bias=last.bias is not None),
        )
    if not name:  # the module is nothing but its classifier
        return head
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, head)
    return module
