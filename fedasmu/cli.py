"""The command line: run | compare | report | serve | join | rehearse | keys | list | data, and more."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from fedasmu import __version__
from fedasmu.commands import (
    AllowCode,
    Budget,
    Overrides,
    Recipe,
    Seed,
    WorkerCount,
    checking,
    console,
    datasets,
    fleet,
    joining,
    keys,
    loading,
    paper,
    rehearsing,
    replaying,
    reporting,
    running,
    serving,
    study,
    watching,
    worker_count,
)
from fedasmu.commands.hints import Hinting, UsageError, told, typed
from fedasmu.errors import DeviceError, Interrupted, Refused, UserError, is_refusal, printable, refusal

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Asynchronous federated learning with staleness-aware model update: simulated exactly, repeated bit by bit.",
    epilog="Start with: [bold]fedasmu run quickstart[/bold]",
)
app.add_typer(datasets.data_app, name="data")
app.add_typer(keys.keys_app, name="keys")
app.add_typer(fleet.fleet_app, name="fleet")


def main() -> None:
    """The entry point: a user's mistake is one clear message and exit code 2, never a traceback."""
    try:
        try:
            code = app(standalone_mode=False)
        finally:
            sys.stdout.flush()
        if code == 130:  # typer's, of a Ctrl-C that no command expects
            raise Interrupted
    except Interrupted:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except UsageError as error:
        _fail(told(error))
    except UserError as error:
        _fail(typed(str(error)))
    except (DeviceError, Refused) as error:
        _fail(str(error), code=1)
    except (OSError, MemoryError, RuntimeError) as error:
        if not is_refusal(error):
            raise
        with suppress(OSError, ValueError):  # what could not be written is not tried again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(refusal(error, "standard output"), code=1)
    else:
        sys.exit(code or 0)


def _fail(message: str, code: int = 2) -> None:
    if message:
        errors = Console(stderr=True, emoji=False)
        errors.print("[bold red]error:[/bold red] ", end="")
        errors.print(printable(message), highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


RUN_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu run quickstart

  fedasmu run recipes/quickstart.toml --set algorithm.name=fedavg --workers 2 --out runs/fedavg

  fedasmu run quickstart --set fleet.preset=het110 --set stop.uploads=1000 --seed 3

  fedasmu run lenet-cifar-10 --budget 0.1 --set fleet.preset=wireless175

[bold]Metrics[/bold] (metrics.csv, one line an evaluation)

  time: virtual seconds. version: of the global model. uploads: received so far. accuracy (or the
  recipe's metric), loss: on the test data.

  train_loss, staleness: means over the uploads since the line before. staleness is 1 for an upload that was trained on
  the newest version. stale, refused, lost: uploads discarded as too old or as not a model, and tasks that died.

  bytes_down, bytes_up: all models sent to and by the devices. subset: 0, or on how many test examples alone (with
  evaluate.subset) this line was measured; such lines count for nothing but watching.
"""


@app.command(epilog=RUN_EXAMPLES, cls=Hinting)
def run(
    recipe: Recipe = "",
    overrides: Overrides = None,
    workers: WorkerCount = "",
    seed: Seed = None,
    budget: Budget = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run directory; runs/<name> unless given.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="The same as `fedasmu resume DIR`.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what an earlier run left in the run directory.")] = False,
    repeat_failure: Annotated[bool, typer.Option(help="With --resume: perform alone what failed there.")] = False,
    track: running.Track = None,
    watched: watching.Watched = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a federated model on a simulated fleet."""
    if bool(recipe) == (resume is not None):
        raise UserError("give either a recipe or --resume DIR; for instance: fedasmu run quickstart")
    if resume is not None and (overrides or overwrite or any(one is not None for one in (seed, budget, out))):
        raise UserError(
            "--resume goes on with the run as it is: --set, --seed, --budget, --out and --overwrite do not apply"
        )
    if repeat_failure and resume is None:
        raise UserError("--repeat-failure goes with --resume DIR: which run's failure?")
    if resume is not None:
        running.resume(
            resume,
            workers=workers,
            repeat_failure=repeat_failure,
            track=track,
            watched=watched,
            allow_code=allow_code,
        )
        return
    count = worker_count(workers)
    loading()
    from fedasmu.experiment import Experiment
    from fedasmu.settings.recipe import load

    seeds = [] if seed is None else [f"seed={seed}"]
    config = load(recipe, [*(overrides or []), *seeds], allow_code=allow_code)
    experiment = Experiment(config if budget is None else config.scaled(budget))
    directory = out or Path("runs") / experiment.config.name
    running.conduct(experiment, directory, count, overwrite=overwrite, track=track, watched=watched)


for command, epilog in (
    (running.resume, running.RESUME_EXAMPLES),
    (study.compare, study.COMPARE_EXAMPLES),
    (study.sweep, study.SWEEP_EXAMPLES),
    (reporting.report, reporting.REPORT_EXAMPLES),
    (paper.reproduce, paper.REPRODUCE_EXAMPLES),
    (checking.check, checking.CHECK_EXAMPLES),
    (watching.watch, watching.WATCH_EXAMPLES),
    (serving.serve, serving.SERVE_EXAMPLES),
    (joining.join, joining.JOIN_EXAMPLES),
    (rehearsing.rehearse, rehearsing.REHEARSE_EXAMPLES),
    (replaying.replay, replaying.REPLAY_EXAMPLES),
):
    app.command(epilog=epilog, cls=Hinting)(command)

What = Literal["methods", "models", "datasets", "recipes", "fleets", "keys"]
LIST_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu list methods --json

  fedasmu list keys fedasmu
"""


@app.command("list", epilog=LIST_EXAMPLES, cls=Hinting)
def list_(
    what: Annotated[What, typer.Argument(help="What to list.")],
    method: Annotated[str, typer.Argument(metavar="[METHOD]", help="With keys: the settings of this method.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the methods, models, data sets, recipes, fleets or keys of a recipe there are."""
    from fedasmu.commands.listing import LISTINGS, keys

    if method and what != "keys":
        raise UserError(f"list {what} {method}: only keys are listed by method, as in: fedasmu list keys {method}")
    rows = keys(method) if what == "keys" else LISTINGS[what]()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    view = Table(title=what, title_justify="left")
    for place, column in enumerate(rows[0]):
        view.add_column(column, overflow="fold", no_wrap=place == 0)  # a name is never broken: it is to be copied
    for row in rows:
        view.add_row(*(", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in row.values()))
    console.print(view)
