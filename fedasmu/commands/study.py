"""The commands that make many runs of one recipe: compare and sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedasmu.commands import AllowCode, Budget, Overrides, Recipe, say, show_grid
from fedasmu.commands.grids import report_failures, run_grid, show, show_times, study_workers
from fedasmu.commands.reporting import Reference
from fedasmu.commands.running import Track
from fedasmu.commands.watching import Watched, beside
from fedasmu.errors import UserError
from fedasmu.settings.packaged import find

if TYPE_CHECKING:
    from fedasmu.study.cells import Cell
    from fedasmu.study.grid import Failures
    from fedasmu.study.sweep import Tried
    from fedasmu.study.variants import Variant

COMPARE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu compare quickstart --methods fedasmu,fedavg,fedbuff --seeds 3 --out runs/three

  fedasmu compare quickstart --methods "fedasync(alpha=0.9),plain=fedasync,fedbuff(buffer=5,local.lr=0.02)"

  fedasmu compare quickstart --methods fedasync,fedbuff --vary fedasync.alpha=0.3,0.6,0.9 --vary local.lr=0.01,0.03

[bold]Methods[/bold]

  Names from `fedasmu list methods`, or the lists all, paper, tables (those of the paper and fedasmu-r), ablation,
  slots. In brackets are settings: a method's own by their name, those of another section of the recipe as section.key.
  label=method(...) gives it a name of your own.

  Every run is DIR/<label>/seed-<k>, a run directory like any other. The same command again goes on where it stopped:
  what is finished is not run again.
"""

Methods = Annotated[str | None, typer.Option(metavar="LIST", help="Methods, see below; the recipe's own unless given.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first of them.")]
Tuned = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The tuned.json of a `fedasmu sweep`: its best settings.")
]
RunsAtOnce = Annotated[
    str,
    typer.Option("--workers", metavar="N|inline|ray", help="Runs at once; as many as there are cores unless given."),
]
Overwrite = Annotated[bool, typer.Option(help="Replace runs there that were made with other settings.")]


def compare(
    recipe: Recipe,
    methods: Methods = None,
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2", help="Every method with each of these values; repeatable.")
    ] = None,
    overrides: Overrides = None,
    tuned: Tuned = None,
    budget: Budget = None,
    workers: RunsAtOnce = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go; runs/compare-<recipe> unless given.")
    ] = None,
    overwrite: Overwrite = False,
    watched: Watched = False,
    track: Track = None,
    reference: Reference = "",
    allow_code: AllowCode = False,
) -> None:
    """Run several methods on several seeds, and end in one table."""
    path, count = find(recipe), study_workers(workers)
    from fedasmu.report.labels import check_reference, keep_order
    from fedasmu.run.trackers import check_known
    from fedasmu.study.cells import cells
    from fedasmu.study.sweep import for_each

    check_known(track or [])
    chosen = _crossed(_named(path, methods, allow_code), vary or [], "--vary")
    out = out or Path("runs") / f"compare-{path.stem}"
    found = for_each(chosen, found_before(tuned, chosen, allow_code))
    grid = cells(path, chosen, range(first_seed, first_seed + seeds), out, overrides or [], budget, found, allow_code)
    grid = [replace(cell, track=tuple(track or [])) for cell in grid]
    labels = [one.label for one in chosen]
    check_reference(reference, labels)
    keep_order(out, labels)
    with beside(out, watched):
        failed = run_grid(grid, count, overwrite)
    say(f"runs: {out}")
    if any(cell.config.timing_only for cell in grid):
        show_times(grid)
    else:
        show(grid, reference)
        if len(failed) < len(grid):
            say(f"tables, figures and a page to look at: fedasmu report {out}")
    report_failures(failed)


SWEEP_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu sweep quickstart --methods fedasync,fedbuff --grid local.lr=0.01,0.03 --grid fedasync.alpha=0.3,0.6

  fedasmu compare quickstart --methods fedasync,fedbuff --tuned runs/sweep-quickstart/tuned.json

  fedasmu sweep lenet-cifar-10 --methods tables --trials 6 --seeds 2 --first-seed 100 --budget 0.1

  fedasmu sweep quickstart --methods fedasync,fedbuff --tuned runs/sweep-quickstart/tuned.json --out runs/second
  --grid local.weight_decay=0,0.002,0.005

A key is one of the recipe (local.lr), of every method that has it (algorithm.alpha), or of one method (fedasync.alpha).
"""


def sweep(
    recipe: Recipe,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2", help="A key and the values to try; repeatable.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(metavar="N", help="Instead of --grid: learning rates, then settings of each method's own."),
    ] = None,
    methods: Methods = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    overrides: Overrides = None,
    tuned: Tuned = None,
    budget: Budget = None,
    workers: RunsAtOnce = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go; runs/sweep-<recipe> unless given.")
    ] = None,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
) -> None:
    """Find the best settings of each method, on training data held out for it: never on the test data."""
    path = find(recipe)
    if bool(grid) == (trials is not None):
        raise UserError(
            "--grid or --trials: what is to be tried? For instance --grid local.lr=0.01,0.03, or --trials 5"
        )
    count = study_workers(workers)
    from fedasmu.study import sweep as tuning
    from fedasmu.study import variants

    named = _named(path, methods, allow_code)
    known = variants.starting_from(found_before(tuned, named, allow_code), named)
    chosen = _crossed(known, grid or [], "--grid")
    out = out or Path("runs") / f"sweep-{path.stem}"
    seed_list = range(first_seed, first_seed + seeds)
    failed: Failures = []

    def run(cells: list[Cell]) -> None:
        failed.extend(run_grid(cells, count, overwrite))

    results = tuning.swept(path, chosen, seed_list, out, overrides or [], trials, run, budget, allow_code)
    if results:
        show_tuned(results, recipe, out)
    report_failures(failed)


def show_tuned(results: Sequence[Tried], recipe: str, out: Path) -> None:
    """What a sweep found, and where it is written."""
    from fedasmu.study import sweep

    show_grid(sweep.table(results))
    for edge in sweep.at_an_edge(results):
        say(f"{edge}: a better one may lie beyond")
    say(f"best settings: {sweep.write(results, recipe, out)}")


def _named(recipe: Path, methods: str | None, allow_code: bool) -> list[Variant]:
    from fedasmu.study import variants
    from fedasmu.study.cells import own_method

    listed = own_method(recipe, allow_code) if methods is None else methods
    for name in variants.repeated(listed):
        say(f"--methods names {name} twice: it runs once")
    return variants.read(listed)


def _crossed(named: list[Variant], axes: list[str], option: str) -> list[Variant]:
    from fedasmu.study import variants

    return variants.crossed(named, [variants.axis(text, option) for text in axes], option)


def found_before(tuned: Path | None, chosen: list[Variant], allow_code: bool) -> dict[str, list[str]]:
    """The best settings of an earlier sweep. Whom it has none for is told."""
    from fedasmu.study.sweep import read, without

    if tuned is None:
        return {}
    best = read(tuned, allow_code)
    for label in without(chosen, best):
        say(f"{tuned} has no settings for {label}: it runs with the recipe's")
    return best
