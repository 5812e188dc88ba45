"""What a device works with: its own examples, the network and the method's device half."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedasmu import models
from fedasmu.algorithms import Learner
from fedasmu.algorithms.measuring import Measuring
from fedasmu.data.examples import Examples
from fedasmu.data.federated import FederatedData, hold_out
from fedasmu.encoding.displacement import Reference
from fedasmu.encoding.rounding import CODES
from fedasmu.engines.contract import native_engine
from fedasmu.engines.goal import Goal
from fedasmu.errors import UserError
from fedasmu.network.terms import Terms, layout_digest
from fedasmu.network.wire import Shapes
from fedasmu.protocol import Model, Workload
from fedasmu.seeding import derive
from fedasmu.training import Trainer
from fedasmu.vector import Layout

LARGEST = 1 << 28  # weights of a model that a server names
STRAY = 10  # ranges of a run's images that one scaled by other statistics may lie outside of them


class Equipment:
    def __init__(
        self,
        terms: Terms,
        data: tuple[Tensor, Tensor],
        device: int,
        url: str,
        model: Callable[[], nn.Module] | None,
        engine: str,
        name: str = "data",  # of the data, in messages
    ) -> None:
        inputs, targets = data
        _check(terms, inputs, targets, name)
        method = terms.method(url)
        module = _network(terms, url, model)
        self.layout = Layout.of(module)
        if layout_digest(self.layout) != terms.layout:
            raise UserError(
                f"{url}: the model {terms.model!r} has other parameters here than on the server; "
                "install the same version of fedasmu, or give the same --model on both sides"
            )
        images = inputs.dtype == torch.uint8 and terms.scale is not None and terms.shift is not None
        scale, shift = (torch.tensor(terms.scale), torch.tensor(terms.shift)) if images else (None, None)
        own = Examples(inputs, targets, scale, shift)
        _check_forward(module, own, terms, name)
        native, self.engine = native_engine(engine, module, self.layout, terms.shape, terms.batch, "cpu")
        kept, held = hold_out(torch.arange(len(targets)), terms.on_devices, derive(terms.held_seed, "device", device))
        federated = FederatedData("own", own, own, [kept], terms.classes, [held])
        work, engines, goal = (terms.batch, terms.epochs), ("cpu", native), Goal(calibrated=terms.calibrate)
        self.trainer = Trainer(module, self.layout, federated, *work, *engines, terms.augment, terms.optimiser, goal)
        self.learner: Learner = Measuring(method.learner()) if len(held) else method.learner()
        self.attachments: Shapes = method.attachments(self.layout)
        self._code = CODES.get(terms.precision)
        self.work = Workload(len(kept), terms.batch, terms.epochs, len(held))

    def reference(self, model: Model, label: str) -> Reference | None:
        """A model that the server knows by this label, to tell others from; None: models travel whole."""
        return None if self._code is None else Reference(model.vector, self.layout, self._code, label)


def _check(terms: Terms, inputs: Tensor, targets: Tensor, name: str) -> None:
    if tuple(inputs.shape[1:]) != terms.shape:
        raise UserError(f"{name}: an input has the shape {tuple(inputs.shape[1:])}, but this run's have {terms.shape}")
    least, most = int(targets.min()), int(targets.max())
    if least < 0 or most >= terms.classes:
        raise UserError(
            f"{name}: targets are {least} to {most}; must be classes 0..{terms.classes - 1}, as in this run"
        )
    if inputs.dtype != torch.uint8 and terms.scale and terms.shift:
        _check_scaled(inputs, terms.scale, terms.shift, name)


def _check_scaled(inputs: Tensor, scale: Sequence[float], shift: Sequence[float], name: str) -> None:
    """Images that are no bytes are taken as they are: those of 0 to 255 would drown what all others have learned."""
    ends = [*shift, *(255 * by + shift for by, shift in zip(scale, shift, strict=True))]
    low, high = min(ends), max(ends)
    least, most = inputs.min().item(), inputs.max().item()
    if min(least - low, high - most) < STRAY * (low - high):
        raise UserError(
            f"{name}: the inputs are {least:g} to {most:g}, but this run's images, once scaled, {low:.3g} to "
            f"{high:.3g}; save them as bytes (uint8), which the run scales, or scale them"
        )


def _network(terms: Terms, url: str, model: Callable[[], nn.Module] | None) -> nn.Module:
    if model is not None:
        module = model()
        if not isinstance(module, nn.Module):
            raise UserError(f"model: gave a {type(module).__name__}, not a torch.nn.Module")
        return module
    if ":" in terms.model or terms.model not in {one.name for one in models.MODELS}:
        raise UserError(
            f"{url}: this run trains {terms.model!r}, which is no built-in model, and a device takes no code from a "
            "server: give your own with --model package.module:factory"
        )
    try:
        with torch.device("meta"):  # without a byte of it: a server may ask for more than there is
            weights = sum(weight.numel() for weight in _built(terms).parameters())
        if weights > LARGEST:
            raise ValueError(f"it is too large, with {weights} weights; at most {LARGEST} are taken from a server")
        return _built(terms)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{url}: the server's model cannot be built here: {error}") from None


def _built(terms: Terms) -> nn.Module:
    return models.build(terms.model, shape=terms.shape, classes=terms.classes, seed=0, **terms.options)


def _check_forward(module: nn.Module, own: Examples, terms: Terms, name: str) -> None:
    module.eval()
    try:
        with torch.no_grad():
            module(own.batch(torch.arange(min(2, len(own))))[0])
    except Exception as error:
        raise UserError(f"{name}: the model {terms.model!r} cannot take these inputs: {error}") from error
