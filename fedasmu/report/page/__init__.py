"""One page for people: a file of HTML that opens from disk, computed from run directories and needing nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedasmu.record import write_whole
from fedasmu.report.league import League, find, leagues
from fedasmu.report.page.charts import curves, distributions, sample
from fedasmu.report.page.tasks import OUTCOMES, tasks
from fedasmu.report.tables import main_table

PARTS = ("uplot/uPlot.min.css", "style.css", "uplot/uPlot.iife.min.js", "charts.js", "timeline.js", "page.js")


def write_page(runs: Sequence[Path], out: Path) -> Path:
    """Everything about the finished runs in or below these directories, in one file."""
    found = leagues(find(list(runs)))
    data = {"leagues": [_league(one) for one in found], "outcomes": OUTCOMES}
    # In a script element only "<" could begin something that is not data: "</script>", "<!--".
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = _part("template.html").replace("{{title}}", html.escape("; ".join(one.title for one in found)))
    for name in PARTS:
        page = page.replace(f"{{{{{name}}}}}", _part(name))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page.replace("{{data}}", text))
    return out


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _league(league: League) -> dict[str, Any]:
    table = main_table(league)
    seeds = [[tasks(run.result) for run in standing.runs] for standing in league.standings]
    return {
        "title": league.title,
        "settings": league.settings,
        "methods": [standing.label for standing in league.standings],
        "targets": league.targets,
        "table": {"header": table.header, "rows": table.rows, "note": table.note},
        "curves": curves(league),
        "distributions": distributions([sample(runs) for runs in seeds]),
        # One seed shows how a method behaves in time, and keeps the file small.
        "timelines": [runs[0].packed() for runs in seeds],
        "runs": [
            [standing.label, run.result.directory.name, *(str(run.result.summary.get(key, "")) for key in RUN)]
            for standing in league.standings
            for run in standing.runs
        ],
        "run_header": ["method", "directory", *RUN],
    }


RUN = ("seed", "uploads", "version", "virtual_seconds", "wall_seconds", "commit", "machine")
