"""The command that runs the paper's studies: reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedasmu.commands import Overrides, say, show_grid
from fedasmu.commands.grids import report_failures, run_grid, study_workers
from fedasmu.commands.study import Overwrite, RunsAtOnce, found_before, show_tuned
from fedasmu.errors import UserError
from fedasmu.settings.packaged import RECIPES

if TYPE_CHECKING:
    from fedasmu.report.tables import Grid
    from fedasmu.study.cells import Cell
    from fedasmu.study.judging import Found
    from fedasmu.study.reproduce import Plan

REPRODUCE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu reproduce table2 --budget small

  fedasmu reproduce ablation --budget half --only lenet-cifar-10

  fedasmu reproduce table1 --only lenet-cifar-100 --tuned runs/reproduce-small/tuning/lenet-cifar-10/tuned.json

[bold]Studies[/bold]

  table1, table2: the paper's tables. ablation, slots: parts of FedASMU. baselines: three more methods. bandwidth,
  heterogeneity, devices: environments. sensitivity: FedASMU's settings.

  Ours: asynchrony: where it pays, as one picture. clock: which rounds and uploads the paper's times would be in a
  fleet, without any training (--set fleet.preset=base: in another one). theorem: the paper's bound, measured.
"""
Name = Literal[
    "table1",
    "table2",
    "ablation",
    "slots",
    "baselines",
    "bandwidth",
    "heterogeneity",
    "devices",
    "sensitivity",
    "asynchrony",
    "clock",
    "theorem",
]


def reproduce(
    study: Annotated[Name, typer.Argument(help="Which of the paper's studies.")],
    budget: Annotated[
        Literal["small", "long", "half", "full"],
        typer.Option(help="small: about 20 minutes a table on 2 cores; long: a night or two."),
    ] = "small",
    only: Annotated[str, typer.Option(metavar="CELL,...", help="Only these of its recipes or environments.")] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many seeds, instead of the budget's.")
    ] = None,
    tune: Annotated[
        int, typer.Option(metavar="N", help="First try N settings of every method on held-out data, and take the best.")
    ] = 0,
    tuned: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tuned.json, found for something like it: its best settings.")
    ] = None,
    overrides: Overrides = None,
    workers: RunsAtOnce = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go; runs/reproduce-<budget> unless given.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Run one of the paper's studies, and set it beside the paper's figures and claims."""
    if tune and tuned:
        raise UserError("--tune finds settings, --tuned takes those that were found: give one of them")
    from fedasmu.storage.record import check_writable

    if study in ("clock", "theorem"):
        given = {"--budget": budget != "small", "--only": only, "--seeds": seeds, "--tune": tune, "--tuned": tuned}
        given |= {"--workers": workers, "--overwrite": overwrite, "--set": overrides and study == "theorem"}
        if useless := ", ".join(option for option, value in given.items() if value):
            takes = "--set and --out" if study == "clock" else "--out"
            raise UserError(f"{useless}: nothing to choose for {study}, which takes {takes} alone")
        out = out or Path("runs") / study
        check_writable(out)
        _write(out / f"{study}.md", [_clock(overrides or []) if study == "clock" else _theorem(out)])
        return
    count = study_workers(workers)
    from fedasmu.study import reproduce as studied
    from fedasmu.study import spaces, variants, versus
    from fedasmu.study.studies import BUDGETS, STUDIES

    if tune:
        spaces.check(tune, "--tune")
    chosen, spend = STUDIES[study], BUDGETS[budget]
    spend = spend if seeds is None else replace(spend, seeds=seeds)
    out = out or Path("runs") / f"reproduce-{budget}"
    check_writable(out)
    names = [name.strip() for name in only.split(",") if name.strip()]
    before = found_before(tuned, variants.read(chosen.methods), allow_code=False)
    best = dict.fromkeys((part.title for part in chosen.parts), before)
    plan = studied.plan(chosen, spend, names, RECIPES, out, overrides or [], best)
    say(f"{study}: {chosen.about}. Budget {budget}: {plan.spent}.")
    for line in (skipped := studied.skipped(plan)):
        say(line)
    if tune:
        best = _tuned(chosen.methods, plan, out / "tuning", overrides or [], tune, count, overwrite)
        plan = studied.plan(chosen, spend, names, RECIPES, out, overrides or [], best)
    failed = run_grid(plan.all_cells, count, overwrite)
    found = studied.measured(plan)
    grids = _asynchrony(found, out) if study == "asynchrony" else versus.compared(chosen, study, found)
    head = f"# {study}: {chosen.about}\n\nBudget {budget}: {plan.spent}.\n"
    _write(out / f"{study}.md", grids, [head, *(f"{line}.\n" for line in skipped)])
    say(f"runs: {out}")
    report_failures(failed)


def _tuned(
    methods: str, plan: Plan, out: Path, overrides: list[str], trials: int, workers: int | str, overwrite: bool
) -> dict[str, dict[str, list[str]]]:
    """Tune for every part; each has its tuned.json beside the runs that it was found with."""
    from fedasmu.study import sweep
    from fedasmu.study.tuning import tuned

    def run(grid: list[Cell]) -> None:
        report_failures(run_grid(grid, workers, overwrite))

    best = {}
    for part, grid in plan.cells.items():
        recipe, folder, uploads = RECIPES / f"{part.recipe}.toml", out / part.title, grid[0].config.stop.uploads
        results = tuned(recipe, methods, uploads, folder, [*part.changes, *overrides], trials, run)
        show_tuned(results, part.recipe, folder)
        best[part.title] = sweep.best(results)
    return best


def _write(path: Path, grids: list[Grid], head: Sequence[str] = ()) -> None:
    """Tables for the terminal and for a file."""
    for grid in grids:
        show_grid(grid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *(grid.markdown() for grid in grids)]))
    say(f"this report: {path}")


def _asynchrony(found: Found, out: Path) -> list[Grid]:
    from fedasmu.study import asynchrony

    places = asynchrony.places(found)
    if places:
        out.mkdir(parents=True, exist_ok=True)
        asynchrony.draw(places, out / "asynchrony.png")
        say(f"the picture: {out / 'asynchrony.png'}")
    return [asynchrony.table(places)]


def _clock(overrides: list[str]) -> Grid:
    from fedasmu.study import clock

    return clock.table(RECIPES, range(3), overrides)


def _theorem(out: Path) -> Grid:
    from fedasmu.study import theorem

    found = theorem.points(range(1))
    out.mkdir(parents=True, exist_ok=True)
    theorem.draw(found, out / "theorem.png")
    say(f"the picture: {out / 'theorem.png'}")
    return theorem.table(found)
