"""The theorem study: FedASMU on softmax regression, its gradients measured against the paper's bound.

The theorem wants T = n^6 rounds for n local steps, and a step size of 1 / sqrt(T): n = 2, 3, 4 are 64, 729 and 4,096
rounds. Data and fleet are those that come with the package, so that anyone can run it in minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from fedasmu.events import Event, Measured, Renewed
from fedasmu.experiment import Experiment
from fedasmu.report.tables import Grid
from fedasmu.run.materials import federated_data
from fedasmu.seeding import derive
from fedasmu.server.desk import Desk
from fedasmu.settings.config import Config
from fedasmu.settings.recipe import parse
from fedasmu.study.bound import Constants, SoftmaxRegression, printed, rate_of, summed

STEPS = (2, 3, 4)
BOUNDS = (5, 10, 20, 40, 99)
EACH = 100  # examples on a device
PROBES = 40  # models of a run at which gradients are taken


@dataclass(frozen=True)
class Point:
    """One run: the mean and the least squared gradient, and both bounds on the mean."""

    steps: int
    staleness: int
    rounds: int
    mean: float
    least: float
    printed: float
    summed: float
    constants: Constants


def settings(steps: int, staleness: int, seed: int, rounds: int | None = None) -> Config:
    rounds = rounds or steps**6
    table: dict[str, Any] = {
        "seed": seed,
        "model": "softmax",
        "data": {"name": "fashion-mnist-small", "split": "equal-dirichlet", "alpha": 0.3},
        "fleet": {"preset": "paper"},
        "local": {"epochs": 1, "batch": -(-EACH // steps), "lr": rate_of(rounds), "decay": 1.0},
        "algorithm": {"name": "fedasmu", "max_staleness": staleness},
        "evaluate": {"every": rounds},
        "stop": {"uploads": rounds},
    }
    return parse(table, "the theorem's study")


@dataclass
class Gradients:
    """Watches a run: gradients of F and of single batches at some of its models."""

    problem: SoftmaxRegression
    shards: Sequence[Tensor]
    batch: int
    every: int
    seed: int
    squares: list[float] = field(default_factory=list)  # |grad F|^2
    gradient: float = 0.0  # the largest mean square of a device's stochastic gradients
    variance: float = 0.0
    weight: float = 1.0
    first: Tensor | None = None
    last: Tensor | None = None

    def observe(self, desk: Desk, line: Event | Measured) -> None:
        self.first = desk.server.model.vector if self.first is None else self.first
        if not isinstance(line, Renewed):
            return
        self.last, self.weight = desk.server.model.vector, min(self.weight, *line.weights)
        if line.version % self.every == 0:
            self._probe(self.last, line.version)

    def _probe(self, vector: Tensor, version: int) -> None:
        whole = self.problem.gradient(vector)
        self.squares.append(float(whole.square().sum()))
        for place in range(5):
            device = derive(self.seed, "probe", version, place) % len(self.shards)
            order = torch.Generator().manual_seed(derive(self.seed, "batches", version, place))
            shard = self.shards[device][torch.randperm(len(self.shards[device]), generator=order)]
            whole_batches = [
                shard[start : start + self.batch] for start in range(0, len(shard) - self.batch + 1, self.batch)
            ]
            drawn = [self.problem.gradient(vector, batch) for batch in whole_batches]
            self.gradient = max(self.gradient, _mean_square(drawn))
            self.variance = max(self.variance, _mean_square([one - whole for one in drawn]))


def _mean_square(vectors: Sequence[Tensor]) -> float:
    return sum(float(one.square().sum()) for one in vectors) / len(vectors)


def measure(config: Config, steps: int, staleness: int) -> Point:
    data, _ = federated_data(config, lambda message: None)
    rounds = config.stop.uploads
    problem = SoftmaxRegression(*data.train.batch(slice(None)), data.classes)
    watch = Gradients(problem, data.shards, config.local.batch, max(1, rounds // PROBES), config.seed)
    with TemporaryDirectory() as directory:
        result = Experiment(config).run(Path(directory) / "run", observe=watch.observe)
        made = int(result.summary["version"])
    assert watch.first is not None
    assert watch.last is not None
    fall = problem.loss(watch.first) - problem.loss(watch.last)
    known = Constants(problem.smoothness, watch.gradient, watch.variance, watch.weight, steps, fall)
    return Point(
        steps,
        staleness,
        made,
        mean=sum(watch.squares) / len(watch.squares),
        least=min(watch.squares),
        printed=printed(known, made, rate_of(rounds), staleness),
        summed=summed(known, made, rate_of(rounds), staleness),
        constants=known,
    )


def points(seeds: Sequence[int], steps: Sequence[int] = STEPS, bounds: Sequence[int] = BOUNDS) -> list[Point]:
    """More and more rounds with the loosest bound on staleness, then every bound with the most rounds."""
    pairs = [(n, bounds[-1]) for n in steps[:-1]] + [(steps[-1], bound) for bound in bounds]
    return [measure(settings(n, bound, seed), n, bound) for seed in seeds for n, bound in pairs]


def table(found: Sequence[Point]) -> Grid:
    rows = tuple(
        (
            f"{one.steps} steps, tau = {one.staleness}",
            f"{one.rounds:,}",
            f"{one.least:.4f}",
            f"{one.mean:.4f}",
            f"{one.printed:.3g}",
            f"{one.printed / one.mean:,.0f}",
            f"{one.summed:.3g}",
            f"{one.constants.gradient:.3g}",
        )
        for one in found
    )
    header = ("run", "versions", "least", "mean", "printed bound", "times the mean", "summed bound", "G^2")
    note = "Squared norms of the gradient of F, and the two bounds on their mean. G^2 bounds it by assumption."
    return Grid("The theorem on softmax regression", header, rows, note)


def draw(found: Sequence[Point], path: Path) -> None:
    """Left: more and more rounds. Right: looser and looser bounds on staleness."""
    import matplotlib
    from matplotlib.figure import Figure

    from fedasmu.report.figures import STYLE

    most = max(one.steps for one in found)
    loosest = max(one.staleness for one in found)
    panels = (
        ("T = $n^6$ rounds, n = 2, 3, 4 local steps", "rounds", [one for one in found if one.staleness == loosest]),
        (f"{most**6:,} rounds", "bound on staleness", [one for one in found if one.steps == most]),
    )
    with matplotlib.rc_context({**STYLE, "text.parse_math": True}):  # powers of ten on the axes
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for place, (title, across, chosen) in enumerate(panels):
            axes = figure.add_subplot(1, 2, place + 1, title=title, xlabel=across, xscale="log", yscale="log")
            ordered = sorted(chosen, key=lambda one: one.rounds if place == 0 else one.staleness)
            where = [one.steps**6 if place == 0 else one.staleness for one in ordered]
            for label, mark, values in (
                ("bound, summed over rounds", "^", [one.summed for one in ordered]),
                ("bound, as printed", "s", [one.printed for one in ordered]),
                ("G² (assumed)", "x", [one.constants.gradient for one in ordered]),
                ("measured mean of |∇F|²", "o", [one.mean for one in ordered]),
            ):
                axes.plot(where, values, mark + "-", markersize=4, label=label)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
        figure.savefig(path, dpi=150)
