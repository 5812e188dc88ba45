"""One run in the terminal: live while it goes on, a table and a picture at its end. And the command resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedasmu.commands import AllowCode, WorkerCount, console, loading, say, worker_count
from fedasmu.commands.watching import Watched, beside
from fedasmu.errors import DeviceError, Interrupted, Refused, is_refusal, refusal

if TYPE_CHECKING:
    from fedasmu.experiment import Experiment

RESUME_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu resume runs/quickstart

  fedasmu resume runs/quickstart --uploads 2000

An interrupted run goes on from its last checkpoint. With --uploads or --time a finished run is extended: it ends in the
bytes of a run that was that long from the start.
"""
Track = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Log to tensorboard, wandb or mlflow, too; repeatable.")
]


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run directory.")],
    uploads: Annotated[int | None, typer.Option(min=1, help="Extend it to so many uploads in all.")] = None,
    time: Annotated[float | None, typer.Option(min=0, help="Extend it to so many virtual seconds in all.")] = None,
    workers: WorkerCount = "",
    repeat_failure: Annotated[bool, typer.Option(help="Only perform, alone, what failed there.")] = False,
    track: Track = None,
    watched: Watched = False,
    allow_code: AllowCode = False,
) -> None:
    """Go on with an interrupted run, or make a finished one longer."""
    count = worker_count(workers)
    loading()
    from fedasmu.experiment import Experiment

    experiment = Experiment.of_run(directory, uploads=uploads, time=time, allow_code=allow_code)
    if repeat_failure:
        experiment.repeat_failure(directory)
        console.print("it did not fail this time", style="yellow")
        return
    conduct(experiment, directory, count, resume=True, track=track, watched=watched)


def conduct(
    experiment: Experiment,
    directory: Path,
    workers: int | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    track: list[str] | None = None,
    watched: bool = False,
) -> None:
    """Run it, and show what came of it. Whatever stops it, the user is told how to go on."""
    from fedasmu.report.summary import draw_curve, table
    from fedasmu.run.progress import Live
    from fedasmu.storage.failure import FOLDER

    again = f"fedasmu resume {directory}{' --allow-code' if experiment.config.code else ''}"
    live = Live(console, experiment.config.stop.uploads)
    try:
        with beside(directory, watched), live.shown():
            result = experiment.run(
                directory,
                workers=workers,
                resume=resume,
                overwrite=overwrite,
                extendable=True,
                trackers=track or [],
                observe=live.observe,
                say=live.say,
            )
    except Interrupted:
        say(f"stopped; everything so far is kept. Go on with: {again}")
        raise SystemExit(130) from None  # its word has been said
    except (OSError, MemoryError, RuntimeError) as error:
        if not is_refusal(error):
            raise
        begun = (directory / "config.toml").is_file()
        way = f"What is saved is kept. Go on with: {again}" if begun else "Nothing was begun."
        raise Refused(f"the run cannot go on: {refusal(error, directory)}\n{way}") from error
    except DeviceError as error:
        kept = (directory / FOLDER).is_dir()
        way, option = ("alone", "--repeat-failure") if kept else ("in one process", "--workers inline")
        raise DeviceError(error.job, f"{error}\n\nrepeat it {way}: {again} {option}") from None
    console.print(table(result))
    say(f"run directory: {directory}")
    if not experiment.config.timing_only:
        name = "accuracy.png" if result.metric.is_share else "curve.png"
        say(f"curve:         {draw_curve(result, directory / name)}")
