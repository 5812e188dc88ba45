"""The command that runs the paper's studies: reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedasmu.commands import say, show_grid
from fedasmu.commands.study import Overwrite, Set, WorkerCount, report_failures, run_grid, study_workers
from fedasmu.packaged import RECIPES

REPRODUCE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu reproduce table2 --budget small

  fedasmu reproduce ablation --budget half --only lenet-cifar-10

[bold]Studies[/bold]

  table1, table2: the paper's tables. ablation, slots: parts of FedASMU. baselines: three more methods. bandwidth,
  heterogeneity, devices: environments. sensitivity: FedASMU's settings. clock: which rounds and uploads the paper's
  times would be in a fleet, without any training; --set fleet.preset=base asks for another fleet.
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
    "clock",
]


def reproduce(
    study: Annotated[Name, typer.Argument(help="Which of the paper's studies.")],
    budget: Annotated[
        Literal["small", "half", "full"], typer.Option(help="small: about 20 minutes a table on 2 cores.")
    ] = "small",
    only: Annotated[str, typer.Option(metavar="CELL,...", help="Only these of its recipes or environments.")] = "",
    overrides: Set = None,
    workers: WorkerCount = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go; runs/reproduce-<budget> unless given.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Run one of the paper's studies, and set it beside the paper's figures and claims."""
    if study == "clock":
        _clock(overrides or [])
        return
    count = study_workers(workers)
    from fedasmu.study import reproduce as studied
    from fedasmu.study.studies import BUDGETS, STUDIES

    chosen, spend = STUDIES[study], BUDGETS[budget]
    out = out or Path("runs") / f"reproduce-{budget}"
    names = [name.strip() for name in only.split(",") if name.strip()]
    plan = studied.plan(chosen, spend, names, RECIPES, out, overrides or [])
    say(f"{study}: {chosen.about}. Budget {budget}: {plan.spent}.")
    for part, reason in plan.left_out.items():
        say(f"not run: {part.title}: {reason}")
    failed = run_grid(plan.all_cells, count, overwrite)
    found = studied.measured(plan)
    grids = [studied.beside(chosen, study, part, league) for part, league in found.items()]
    grids.append(studied.verdict_table(studied.verdicts(chosen, study, found)))
    for grid in grids:
        show_grid(grid)
    out.mkdir(parents=True, exist_ok=True)
    skipped = [f"Not run: {part.title}: {reason}.\n" for part, reason in plan.left_out.items()]
    head = f"# {study}: {chosen.about}\n\nBudget {budget}: {plan.spent}.\n"
    (out / f"{study}.md").write_text("\n".join([head, *skipped, *(grid.markdown() for grid in grids)]))
    say(f"runs: {out}\nthis report: {out / f'{study}.md'}")
    report_failures(failed)


def _clock(overrides: list[str]) -> None:
    from fedasmu.study import clock

    show_grid(clock.table(RECIPES, range(3), overrides))
