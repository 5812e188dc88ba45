"""The experiment as frozen settings: TOML in, unknown keys refused by name, a complete TOML out."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from fedasmu.algorithms import Algorithm, FedAvg, Pace, named, settings
from fedasmu.errors import UserError, did_you_mean
from fedasmu.fleets import PRESETS_OF_FLEETS, FleetSettings
from fedasmu.section import AbsolutePath, Section


class Network(Section):
    """A model by name with its options, or a user's own as "package.module:factory"."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(
        "lenet5", description='a model, or your own as "package.module:factory"; its options are keys too'
    )

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
    per_device: int = Field(600, ge=1, description="examples on each device when timing_only")


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


class Local(Section):
    epochs: int = Field(3, ge=1, description="over a device's examples, in each task")
    batch: int = Field(64, ge=1, description="examples in one step of SGD")
    lr: float = Field(0.005, gt=0, allow_inf_nan=False, description="the learning rate of the first upload")
    decay: float = Field(0.99, gt=0, le=1, description="the learning rate is multiplied by this ...")
    decay_every: int = Field(10, ge=1, description="... every so many uploads")
    lr_floor: float = Field(1e-4, ge=0, description="and never falls below this")

    def learning_rate(self, uploads: int) -> float:
        return min(self.lr, max(self.lr * self.decay ** (uploads // self.decay_every), self.lr_floor))


class Evaluation(Section):
    every: int = Field(10, ge=1, description="uploads between two evaluations")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field([], description="accuracies to report the time to")


class Stop(Section):
    uploads: int = Field(5000, ge=1, description="received in all, whatever became of them")
    time: float = Field(math.inf, gt=0, description="virtual seconds")


class Config(Section):
    name: str = Field("run", pattern=r"^[\w][\w.+-]*$", description="of the run directory")
    seed: int = Field(0, ge=0, description="of everything random")
    model: Network = Network()
    engine: Literal["auto", "native", "torch"] = Field("auto", description="what trains; auto: native where it can")
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?|mps)$", description="where PyTorch trains")
    timing_only: bool = Field(False, description="simulate the order of events without training")
    checkpoint_seconds: float = Field(30.0, gt=0, description="wall-clock time between two checkpoints")
    data: Data = Data()
    fleet: FleetSettings = FleetSettings()
    pacing: Pacing = Pacing()
    local: Local = Local()
    algorithm: InstanceOf[Algorithm]
    evaluate: Evaluation = Evaluation()
    stop: Stop = Stop()

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

    def toml(self) -> str:
        import tomli_w

        table = self.model_dump(mode="json", exclude_none=True, exclude={"algorithm"})
        table["algorithm"] = self.algorithm.model_dump(mode="json", exclude_none=True)
        if math.isinf(self.stop.time):
            del table["stop"]["time"]
        return tomli_w.dumps(table)


def load(path: Path, overrides: Iterable[str] = ()) -> Config:
    """A recipe from its file, with `key=value` overrides applied."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: the recipe cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    table.setdefault("name", path.stem)
    return parse(override(table, overrides), source=str(path))


def override(table: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `section.key=value`, one after the other.

    A new method drops the settings of the one it replaces. A preset goes before what the recipe says of its keys.
    """
    if isinstance(table.get("algorithm"), str):
        table = table | {"algorithm": {"name": table["algorithm"]}}
    for text in overrides:
        dotted, equals, value = text.partition("=")
        keys = dotted.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f"--set {text}: write it as section.key=value, for instance --set local.lr=0.01")
        parsed = _value(value.strip())
        if keys == ["algorithm"]:
            keys = ["algorithm", "name"]
        if keys == ["algorithm", "name"] and table.get("algorithm", {}).get("name") != parsed:
            table = table | {"algorithm": _kept(table.get("algorithm", {}), parsed)}
        if keys[1:] == ["preset"] and isinstance(table.get(keys[0]), dict):
            decided = _decided(keys[0], parsed)
            table = table | {keys[0]: {key: own for key, own in table[keys[0]].items() if key not in decided}}
        table = _put(table, keys, parsed, text)
    return table


def parse(table: Mapping[str, Any], source: str = "the settings") -> Config:
    """Validate a whole table. Every mistake is listed, each with its key, its value and what is allowed."""
    algorithm = table.get("algorithm", {})
    if isinstance(algorithm, str):
        algorithm = {"name": algorithm}
    if not isinstance(algorithm, Mapping) or "name" not in algorithm:
        raise UserError(f"{source}: algorithm.name is missing; see `fedasmu list methods`")
    problems: list[str] = []
    method: Algorithm | None = None
    try:
        method = settings(algorithm)
    except ValidationError as error:
        allowed = set(named(str(algorithm["name"])).model_fields)
        problems += [_problem(entry, "algorithm.", allowed) for entry in error.errors()]
    except ValueError as error:
        problems.append(f"algorithm.name = {algorithm['name']!r}: {error}")
    try:
        # Where the method failed its own checks, any other stands in, so that the other sections are checked too.
        config = Config.model_validate({**table, "algorithm": method or FedAvg()})
    except ValidationError as error:
        problems += [_problem(entry, "", _fields(entry["loc"])) for entry in error.errors()]
    if problems:
        raise UserError(f"{source}:\n" + "\n".join(f"  {problem}" for problem in problems))
    return config


def _value(text: str) -> Any:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], keys: list[str], value: Any, text: str) -> dict[str, Any]:
    key, *rest = keys
    if not rest:
        return table | {key: value}
    inner = table.get(key, {})
    if key == "model" and isinstance(inner, str):
        inner = {"name": inner}
    if not isinstance(inner, dict):
        raise UserError(f"--set {text}: {key} is not a section")
    return table | {key: _put(inner, rest, value, text)}


def _kept(algorithm: dict[str, Any], name: Any) -> dict[str, Any]:
    """What a method keeps under another of its names: all but what its names decide. Another method keeps nothing."""
    try:
        method = named(str(algorithm["name"]))
        if named(str(name)) is not method:
            return {}
    except (KeyError, ValueError):  # a wrong name is reported later, with all other mistakes
        return {}
    decided = {key for preset in method.presets.values() for key in preset}
    return {key: value for key, value in algorithm.items() if key not in decided}


def _decided(section: str, preset: Any) -> set[str]:
    """The keys that a preset, or a list of them, sets."""
    known = {"fleet": {name: keys for name, (_, keys) in PRESETS_OF_FLEETS.items()}, "pacing": PACINGS}
    names = preset if isinstance(preset, list) else [preset]
    return {key for name in names for key in known.get(section, {}).get(str(name), {})}


def _fields(location: tuple[int | str, ...]) -> set[str]:
    """The keys allowed where an error occurred."""
    section: type[BaseModel] = Config
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        inner = None if field is None else field.annotation
        section = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else Section
    return set(section.model_fields)


def _problem(entry: Any, prefix: str, allowed: set[str]) -> str:
    key = prefix + ".".join(str(part) for part in entry["loc"] if part not in ("int", "float"))
    if entry["type"] == "extra_forbidden":
        (section, dot, name), known = key.rpartition("."), sorted(allowed)
        hint = did_you_mean(name, known, prefix=section + dot)
        return f"{key}: unknown key" + (hint or f"; allowed: {', '.join(known)}")
    message = entry["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if entry["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {json.dumps(entry['input'], default=str)}: {message}"
