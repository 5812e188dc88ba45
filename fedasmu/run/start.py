"""The weights that a run starts from, where they are given: a safetensors file, or a state dict in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedasmu.errors import UserError, did_you_mean
from fedasmu.measure import IN_PYTHON
from fedasmu.run.profiles import vouched_for
from fedasmu.settings.config import Config, ModelSettings
from fedasmu.vector import Layout


@dataclass(frozen=True)
class Start:
    """Named tensors, and the digest of the file that they are, or would be, in."""

    source: str  # what messages call it
    tensors: Mapping[str, Tensor]
    digest: str

    def put_into(self, module: nn.Module, layout: Layout) -> None:
        """Every float tensor of the module gets its values: each by its name, none left out, none left over.

        Counters, as BatchNorm has, are no part of a model here: they stay as they are.
        """
        kept, places = set(module.state_dict()), (*layout.parameters, *layout.buffers)
        known = kept | {entry.name for entry in places}
        for name in sorted(self.tensors.keys() - known):
            raise UserError(f"{self.source}: the model has no tensor {name!r}{did_you_mean(name, sorted(known))}")
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for entry in places:
                if entry.name in kept or entry.name in self.tensors:  # else a buffer that no state dict has
                    tensors[entry.name].copy_(self._checked(entry.name, entry.shape))

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.tensors:
            raise UserError(f"{self.source}: lacks the model's tensor {name!r}")
        given = self.tensors[name]
        if tuple(given.shape) != shape or not given.is_floating_point():
            is_, wanted = f"{given.dtype} {tuple(given.shape)}", f"floating-point numbers {shape}"
            raise UserError(f"{self.source}: its tensor {name!r} is {is_}, and the model's are {wanted}")
        if not bool(torch.isfinite(given.float()).all()):
            raise UserError(f"{self.source}: its tensor {name!r} has values that are not finite numbers")
        return given


def start_of(settings: ModelSettings, given: Mapping[str, Tensor] | None = None) -> Start | None:
    """What a run starts from, read; None: from what its seed draws. Refuses others than the recipe vouches for."""
    if settings.weights is None:
        return None
    if settings.weights == IN_PYTHON:
        if given is None:
            raise UserError(
                "this run's first weights were given in Python: resume it with Experiment.of_run(dir, weights=...)"
            )
        found = _of_python(given)
    else:
        found = _of_file(Path(settings.weights))
    if settings.weights_sha256 not in (None, found.digest):
        raise UserError(
            f"{found.source}: not the weights that the recipe names: their digest is {found.digest}, "
            f"and model.weights_sha256 = {settings.weights_sha256}"
        )
    return found


def vouched(config: Config, start: Start | None) -> Config:
    """The recipe with the digests of the files that it names."""
    return with_fleet(with_weights(config, start))


def with_fleet(config: Config) -> Config:
    """With those of its fleet: profiles and trace."""
    return config.model_copy(update={"fleet": vouched_for(config.fleet)})


def with_weights(config: Config, start: Start | None) -> Config:
    """With that of the weights that it starts from."""
    if start is None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"weights_sha256": start.digest})})


def _of_file(path: Path) -> Start:
    source = f"model.weights = {path}"
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise UserError(
            f"{source}: a folder; name the file, as {path / 'model.safetensors'}, which a run leaves"
        ) from None
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from None
    try:
        return Start(source, load(data), sha256(data).hexdigest())
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(
            f"{source}: not a safetensors file, which safetensors.torch.save_file(module.state_dict(), ...) writes: "
            f"{error}"
        ) from None


def _of_python(given: Mapping[str, Tensor]) -> Start:
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in given.items()}
    return Start("weights", tensors, sha256(save(tensors)).hexdigest())
