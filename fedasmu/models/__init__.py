"""The networks of the paper by name, and a user's own by its import path.

This module only names them: importing it does not import torch, so listing the models is immediate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedasmu.imports import load
from fedasmu.models.architecture import Architecture, Option, check_signature, parameters, unknown

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "Architecture", "Option", "architecture", "build", "option_names"]

INIT = Option("init", "default", "he: every layer but the last by He's rule, which spares a plateau", ("default", "he"))
MODELS: tuple[Architecture, ...] = (
    Architecture(
        "lenet5",
        "fedasmu.models.lenet:lenet5",
        "LeNet-5 with ReLU and max-pooling",
        (Option("pad", 0, "zeros around the image before the first convolution", (0, 2)),),
    ),
    Architecture(
        "cnn",
        "fedasmu.models.cnn:cnn",
        "the paper's CNN: two 2x2 convolutions and one dense layer, no pooling",
        (Option("padding", "valid", "'same' keeps the size of the image", ("valid", "same")),),
    ),
    Architecture("cnn_tf", "fedasmu.models.cnn:cnn_tf", "three 3x3 convolutions with pooling and a dense layer of 64"),
    Architecture(
        "resnet20",
        "fedasmu.models.resnet:resnet20",
        "ResNet-20 in its CIFAR form",
        (
            Option("shortcut", "A", "A: stride and zero channels; B: 1x1 convolution", ("A", "B")),
            Option("norm", "batch", "BatchNorm, or GroupNorm with two groups", ("batch", "group")),
        ),
    ),
    Architecture(
        "alexnet",
        "fedasmu.models.alexnet:alexnet",
        "AlexNet for small images",
        (
            Option("size", "small", "gap: global pooling instead of hidden dense layers", ("small", "large", "gap")),
            INIT,
        ),
    ),
    Architecture(
        "vgg11",
        "fedasmu.models.vgg:vgg11",
        "VGG-11 for small images",
        (
            Option("batch_norm", False, "BatchNorm after each convolution", (False, True)),
            Option("head", "mlp", "mlp: two hidden layers of 512; linear: none", ("mlp", "linear")),
            INIT,
        ),
    ),
    Architecture(
        "textcnn",
        "fedasmu.models.textcnn:textcnn",
        "Kim's TextCNN: windows of 3, 4 and 5 words, 100 filters each",
        (
            Option("vocabulary", 10_000, "how many token ids there are; id 0 is padding"),
            Option("embedding", 100, "dimensions of a word vector"),
            Option("pretrained", None, "a (vocabulary, embedding) matrix to start from"),
            Option("frozen", False, "do not train the word vectors", (False, True)),
            Option("dropout", 0.5, "probability of dropping a feature"),
        ),
    ),
    Architecture("softmax", "fedasmu.models.dense:softmax", "softmax regression: one dense layer, a convex problem"),
    Architecture(
        "mlp",
        "fedasmu.models.dense:mlp",
        "one hidden layer with ReLU",
        (Option("hidden", 200, "width of the hidden layer"),),
    ),
)


def architecture(name: str) -> Architecture:
    """The entry called `name`; a ValueError that suggests the closest one if there is none."""
    for entry in MODELS:
        if entry.name == name:
            return entry
    raise unknown("model", name, [entry.name for entry in MODELS], "; or give your own as package.module:factory")


def option_names(name: str) -> set[str]:
    """What a model can be asked for besides the shape and the classes: a text model takes a `vocabulary`, say."""
    if ":" in name:
        return parameters(load(name))
    return {option.name for option in architecture(name).options}


def build(name: str, *, shape: tuple[int, ...], classes: int, seed: int, **options: Any) -> nn.Module:
    """A freshly initialised network: the same arguments give the same bits, and torch's generator is left as it was.

    `name` is an entry of `MODELS`, or the "package.module:factory" of a callable that takes the options alone and
    returns a module.
    """
    from torch import nn

    from fedasmu.models.initialise import seeded

    if classes < 1:
        raise ValueError(f"a network needs at least 1 output, got classes = {classes}")
    if ":" in name:
        arguments: tuple[Any, ...] = ()
        factory = load(name)
        check_signature(name, factory, options)
    else:
        entry = architecture(name)
        entry.check(options)
        arguments = (tuple(shape), classes)
        factory = load(entry.factory)
    with seeded(seed):
        module = factory(*arguments, **options)
    if not isinstance(module, nn.Module):
        raise ValueError(f"the model {name!r} must return a torch.nn.Module, not {type(module).__name__}")
    return module
