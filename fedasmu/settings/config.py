"""The experiment as frozen settings: TOML in, unknown keys refused by name, a complete TOML out."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, InstanceOf, model_validator

from fedasmu.algorithms import Algorithm, Pace
from fedasmu.algorithms.attack import AttackSettings
from fedasmu.algorithms.guard import GuardSettings
from fedasmu.engines.optimiser import Optimiser
from fedasmu.errors import UserError
from fedasmu.imports import named_code
from fedasmu.measure import CROSS_ENTROPY, IN_PYTHON, LOSSES, known
from fedasmu.section import SHA256, AbsolutePath, Section
from fedasmu.server.transfer import TransferSettings
from fedasmu.settings.deployment import NetworkSettings
from fedasmu.settings.evaluation import Evaluation
from fedasmu.settings.fleets import FleetSettings


def _absolute(path: str) -> str:
    return path if path == IN_PYTHON else str(Path(path).expanduser().absolute())


class ModelSettings(Section):
    """A model by name with its options, or a user's own as "package.module:factory"."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(
        "lenet5", description='a model, or your own as "package.module:factory"; its options are keys too'
    )
    weights: Annotated[str, AfterValidator(_absolute)] | None = Field(
        None, description="a safetensors file to start from, instead of weights drawn from the seed"
    )
    weights_sha256: str | None = Field(
        None, pattern=SHA256, description="what sha256sum says of that file; a run directory always has it"
    )

    @model_validator(mode="after")
    def _check_digest(self) -> ModelSettings:
        if self.weights_sha256 is not None and self.weights is None:
            raise ValueError("weights_sha256 is of weights, and model.weights names none")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Columns(Section):
    """Of a Hugging Face folder."""

    inputs: str = Field("image", description="images, texts or numbers of one shape")
    targets: str = Field("label", description="classes, as whole numbers")
    user: str | None = Field(None, description="whose each training example is (split = user)")


class Data(Section):
    name: str = Field(
        "fashion-mnist", description='a data set, "huggingface", or your own as "package.module:function"'
    )
    dir: AbsolutePath | None = Field(None, description="where its files are, before all other places")
    download: bool = Field(True, description="fetch it from upstream if it is found nowhere")
    fallback: Literal["embedded"] | None = Field(None, description="instead of downloading, use what is in the package")
    split: Literal["dirichlet", "equal-dirichlet", "iid", "shards", "user"] = Field(
        "dirichlet", description="how the training data are divided over the devices"
    )
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False, description="of the Dirichlet splits: smaller is more skewed")
    min_samples: int = Field(10, ge=1, description="the fewest examples a device may have (dirichlet)")
    shards_per_device: int = Field(2, ge=1, description="how many runs of like labels a device gets (shards)")
    held_out: float = Field(
        0.0, ge=0, lt=1, description="share of the training data to tune on instead of the test data"
    )
    augment: Literal["none", "crop", "crop+flip"] = Field(
        "none", description="alter the images of each training step: move them by up to 4 pixels, mirror half of them"
    )
    vocabulary: int = Field(10_000, ge=3, description="of texts: how many numbers, with padding and unknown")
    length: int = Field(500, ge=1, description="of texts: words that are kept")
    padding: Literal["pre", "post"] = Field("pre", description="of texts: where short ones are filled up")
    truncation: Literal["pre", "post"] = Field("pre", description="of texts: which end of long ones is cut off")
    glove: AbsolutePath | None = Field(None, description="of texts: a local file of GloVe vectors to start from")
    columns: Columns = Columns()
    per_device: int = Field(600, ge=1, le=10**9, description="examples on each device when timing_only")


PACINGS: dict[str, dict[str, Any]] = {
    "text": {"period": 5.0, "count": 1},  # the paper's text: one idle device every 5 s
    "table": {"period": 10.0, "count": 10},  # the paper's tables: m' = 10, a period of 10 s
}


class Pacing(Section):
    preset: Literal["text", "table"] = Field("text", description="of the paper: 1 device every 5 s, or 10 every 10 s")
    period: float = Field(5.0, gt=0, allow_inf_nan=False, description="seconds between two triggers")
    count: int = Field(1, ge=1, description="the most devices one trigger starts")
    max_in_flight: int | float = Field(0.1, gt=0, description="a share of the fleet (0.1), or a number of devices (10)")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, table: Any) -> Any:
        return PACINGS.get(str(table.get("preset", "text")), {}) | table if isinstance(table, dict) else table

    @model_validator(mode="after")
    def _check_share(self) -> Pacing:
        if isinstance(self.max_in_flight, float) and self.max_in_flight > 1:
            raise ValueError(
                f"max_in_flight = {self.max_in_flight}: a share is at most 1.0; write a number without a point"
            )
        return self

    def pace(self, devices: int) -> Pace:
        limit = self.max_in_flight
        return Pace(self.count, min(devices, max(1, round(limit * devices) if isinstance(limit, float) else limit)))


class Local(Optimiser):
    epochs: int = Field(3, ge=1, le=100_000, description="over a device's examples, in each task")
    batch: int = Field(64, ge=1, description="examples in one step of SGD")
    lr: float = Field(0.005, gt=0, allow_inf_nan=False, description="the learning rate of the first upload")
    decay: float = Field(0.99, gt=0, le=1, description="the learning rate is multiplied by this ...")
    decay_every: int = Field(10, ge=1, description="... every so many uploads")
    lr_floor: float = Field(1e-4, ge=0, description="and never falls below this")
    calibrate: bool = Field(
        False, description="a device's own mixture of classes is not for the network to learn, whatever the method"
    )
    loss: Annotated[str, AfterValidator(partial(known, names=LOSSES))] = Field(
        CROSS_ENTROPY, description=f'{", ".join(LOSSES)}, or your own as "package.module:function"'
    )

    def learning_rate(self, uploads: int) -> float:
        return min(self.lr, max(self.lr * self.decay ** (uploads // self.decay_every), self.lr_floor))


class Stop(Section):
    uploads: int = Field(5000, ge=1, description="received in all, whatever became of them")
    time: float = Field(math.inf, gt=0, description="virtual seconds")


# Settings that change no result; of the first weights it is their digest that counts, wherever they are.
WITHOUT_INFLUENCE = {"name", "checkpoint_seconds", "model.weights"}


class Config(Section):
    name: str = Field(
        "run", pattern=r"^[\w][\w.+-]*$", description="letters, digits and . + - _, for the run directory"
    )
    seed: int = Field(0, ge=0, description="of everything random")
    model: ModelSettings = ModelSettings()
    engine: Literal["auto", "native", "torch"] = Field("auto", description="what trains; auto: native where it can")
    instructions: Literal["auto", "base", "avx2", "avx512"] = Field(
        "auto", description="of the native engine; auto: the best that the processor has"
    )
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:\d+)?|mps)$", description="cpu, cuda, cuda:N or mps: where PyTorch trains"
    )
    per_gpu: int = Field(1, ge=1, le=100, description="trainings side by side on one GPU of a Ray cluster")
    timing_only: bool = Field(False, description="simulate the order of events without training")
    checkpoint_seconds: float = Field(30.0, gt=0, description="wall-clock time between two checkpoints")
    data: Data = Data()
    fleet: FleetSettings = FleetSettings()
    pacing: Pacing = Pacing()
    local: Local = Local()
    algorithm: InstanceOf[Algorithm]
    evaluate: Evaluation = Evaluation()
    stop: Stop = Stop()
    network: NetworkSettings = NetworkSettings()
    transfer: TransferSettings = TransferSettings()
    guard: GuardSettings = GuardSettings()
    attack: AttackSettings = AttackSettings()

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, table: Any) -> Any:
        """`model = "lenet5"` is short for a table with that name."""
        if isinstance(table, dict) and isinstance(table.get("model"), str):
            return table | {"model": {"name": table["model"]}}
        return table

    def scaled(self, budget: float) -> Config:
        """The same experiment with a budget so many times as large."""
        if not 0 < budget < math.inf:
            raise UserError(f"budget = {budget}: must be a number above 0; 0.1 is a tenth of the recipe's")
        stop = Stop(uploads=max(1, round(self.stop.uploads * budget)), time=self.stop.time * budget)
        return self.model_copy(update={"stop": stop})

    def on(self, data_set: str) -> Config:
        """The recipe once it is known what is read: its own data set, or what stands in for it."""
        if self.data.fallback is None:
            return self
        return self.model_copy(update={"data": self.data.model_copy(update={"name": data_set, "fallback": None})})

    @property
    def code(self) -> dict[str, str]:
        """The names of a user's own code, by their sections."""
        return named_code(
            {
                "model": self.model.name,
                "data": self.data.name,
                "algorithm": self.algorithm.name,
                "local": {"loss": self.local.loss},
                "evaluate": {"metric": self.evaluate.metric},
            }
        )

    def toml(self) -> str:
        import tomli_w

        table = self.model_dump(mode="json", exclude_none=True, exclude={"algorithm"})
        table["algorithm"] = self.algorithm.plain()
        if math.isinf(self.stop.time):
            del table["stop"]["time"]
        return tomli_w.dumps(table)
