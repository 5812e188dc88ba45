"""One page for people: a file of HTML that opens from disk, computed from run directories and needing nothing else."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedasmu.report.league import League, find, leagues
from fedasmu.report.lessons import best, few, lesson, ranked
from fedasmu.report.page.charts import curves, distributions, sample
from fedasmu.report.page.tasks import OUTCOMES, tasks
from fedasmu.report.palette import order
from fedasmu.report.standing import measured
from fedasmu.report.tables import main_table

RUN = ("seed", "uploads", "version", "virtual_seconds", "wall_seconds", "commit", "machine")


def write_page(runs: Sequence[str | Path], out: str | Path, reference: str = "") -> Path:
    """Everything about the finished runs in or below these directories; the others are measured against `reference`."""
    return page_of(leagues(find(runs), reference), Path(out))


def page_of(found: Sequence[League], out: Path) -> Path:
    """The same, of leagues."""
    places = {label: place for place, label in enumerate(order(found))}
    data = {"leagues": [_league(one, places) for one in found], "outcomes": OUTCOMES}
    # In a script element only "<" could begin something that is not data: "</script>", "<!--".
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    own = {"data": text, "title": html.escape("; ".join(one.title for one in found))}
    out.parent.mkdir(parents=True, exist_ok=True)
    # All at once, so that what is put in is not searched for places again.
    page = re.sub(r"{{(.+?)}}", lambda place: own.get(place[1]) or _part(place[1]), _part("template.html"))
    out.write_text(page, encoding="utf-8")
    return out


def _best(league: League, header: Sequence[str]) -> list[list[int]]:
    """Of each row, the columns to be set in bold."""
    names = ["at" if name.startswith("at ") else name for name in header]
    return [[place for place, name in enumerate(names) if name in columns] for columns in best(league)]


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _league(league: League, places: dict[str, int]) -> dict[str, Any]:
    table = main_table(league)
    seeds = [[tasks(run.result) for run in standing.runs] for standing in league.standings]
    return {
        "title": league.title,
        "settings": league.settings,
        "methods": [standing.label for standing in league.standings],
        "looks": [places[standing.label] for standing in league.standings],
        "ranks": [ranked(league).index(standing) + 1 for standing in league.standings],
        "targets": league.targets,
        "metric": {"name": league.metric.name, "larger": league.metric.larger, "share": league.metric.is_share},
        "measured": measured(league.reference.runs[0].result),
        "lesson": lesson(league),
        "few": [league.standings.index(standing) for standing in few(league)],
        "table": {"header": table.header, "rows": table.rows, "note": table.note, "best": _best(league, table.header)},
        "curves": curves(league),
        "distributions": distributions([sample(runs) for runs in seeds]),
        # One seed shows how a method behaves in time, and keeps the file small.
        "timelines": [runs[0].packed() for runs in seeds],
        "told": any(len(runs[0].columns["start"]) for runs in seeds),  # or nobody kept the events
        "runs": [
            [standing.label, run.result.directory.name, *(str(run.result.summary.get(key, "")) for key in RUN)]
            for standing in league.standings
            for run in standing.runs
        ],
        "run_header": ["method", "directory", *RUN],
    }
