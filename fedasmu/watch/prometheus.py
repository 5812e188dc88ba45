"""Runs in the text format of Prometheus, version 0.0.4: the last line of each run's metrics, and how services stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fedasmu.watch.runs import Run
from fedasmu.watch.service import number, read

Sample = tuple[dict[str, str], float]  # labels, value
LONGEST = 1000  # characters of the head of a file of metrics
CONTENT = "text/plain; version=0.0.4; charset=utf-8"

MEASURED = {
    "time": ("run_seconds", "gauge", "Virtual seconds of a simulation, seconds served of a service."),
    "version": ("model_version", "gauge", "How often the global model was updated."),
    "uploads": ("uploads_total", "counter", "Uploads received, whatever became of them."),
    "loss": ("loss", "gauge", "Of the last evaluation."),
    "device_accuracy": ("device_accuracy", "gauge", "Mean over the devices of what each measured last."),
    "worst_tenth": ("worst_tenth_accuracy", "gauge", "Of the devices for whom the model is worst."),
    "staleness": ("staleness", "gauge", "Mean over the uploads before the last evaluation."),
    "stale": ("stale_total", "counter", "Uploads discarded as too old."),
    "refused": ("refused_total", "counter", "Uploads that were no valid model."),
    "lost": ("lost_total", "counter", "Tasks that were never delivered."),
    "bytes_down": ("bytes_down_total", "counter", "Bytes of models sent to devices."),
    "bytes_up": ("bytes_up_total", "counter", "Bytes of models sent by devices."),
}
SERVED = {
    "at": ("service_written_timestamp_seconds", "gauge", "When the service last told of itself."),
    "requests": ("service_requests_total", "counter", "Requests since the service was started."),
    "visits": ("service_visits", "gauge", "Devices that have said hello."),
    "disk_free": ("service_disk_free_bytes", "gauge", "Where the run directory is."),
    "ledger_bytes": ("service_ledger_bytes", "gauge", "Of acts since the last checkpoint."),
    "recovered_acts": ("service_recovered_acts", "gauge", "That were applied again when the service was started."),
}


def text(runs: Sequence[Run]) -> str:
    """All runs, each with its own value of the label `run`."""
    return "".join(line + "\n" for line in _lines(runs))


def escaped(value: str) -> str:
    """As a label's value: backslash, quotation mark and line feed have a way of their own."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def series(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One metric: what it is, then a line for each sample. Nothing where there is no sample."""
    known = list(samples)
    if not known:
        return
    yield f"# HELP fedasmu_{name} {help_text}"
    yield f"# TYPE fedasmu_{name} {kind}"
    for labels, value in known:
        inside = ",".join(f'{label}="{escaped(one)}"' for label, one in labels.items())
        yield f"fedasmu_{name}{{{inside}}} {value!r}"


def _lines(runs: Sequence[Run]) -> Iterator[str]:
    finished = [({"run": run.label}, float((run.directory / "summary.json").is_file())) for run in runs]
    yield from series("run_finished", "gauge", "1 when the run is over.", finished)
    last = {run.label: _last(run) for run in runs}
    named = ((label, _metric(row), row) for label, row in last.items())
    scores = (({"run": label, "metric": metric}, row[metric]) for label, metric, row in named if metric)
    yield from series("score", "gauge", "Of the last evaluation, by the run's metric.", scores)
    for key, about in MEASURED.items():
        yield from series(*about, (({"run": label}, row[key]) for label, row in last.items() if key in row))
    services = {run.label: found for run in runs if (found := read(run.directory)) is not None}
    for key, about in SERVED.items():
        values = ((label, number(found, key)) for label, found in services.items())
        yield from series(*about, (({"run": label}, value) for label, value in values if value is not None))
    yield from series("service_devices", "gauge", "Seats by what their device does.", _states(services))
    yield from series("service_refusals_total", "counter", "Refused requests by their code.", _refusals(services))


def _last(run: Run) -> dict[str, float]:
    """The last line of the metrics by the names in its head, as far as it is numbers."""
    try:
        with (run.directory / "metrics.csv").open(errors="replace") as file:
            head = file.readline(LONGEST).rstrip("\n").split(",")
    except OSError:
        return {}
    found: dict[str, float] = {}
    for name, cell in zip(head, str(run.overview()["last"]).split(","), strict=False):
        with suppress(ValueError):
            found[name] = float(cell)
    return found


def _metric(row: dict[str, float]) -> str:
    """The column after the uploads is headed by the run's metric."""
    names = list(row)
    place = names.index("uploads") + 1 if "uploads" in names else len(names)
    return names[place] if place < len(names) else ""


def _states(services: dict[str, dict[str, Any]]) -> Iterator[Sample]:
    for label, found in services.items():
        states = Counter(str(device.get("state"))[:32] for device in found["devices"])
        yield from (({"run": label, "state": state}, float(count)) for state, count in sorted(states.items()))


def _refusals(services: dict[str, dict[str, Any]]) -> Iterator[Sample]:
    for label, found in services.items():
        told = found.get("refusals")
        refusals = told if isinstance(told, dict) else {}
        for code in sorted(refusals):
            if (count := number(refusals, code)) is not None:
                yield {"run": label, "code": code[:32]}, count
