"""A fleet's files count by what is in them: an edited one is another fleet, a moved one the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedasmu import Experiment, Result
from fedasmu.errors import UserError
from fedasmu.report.league import find, leagues
from fedasmu.study.cells import cells
from fedasmu.study.variants import Variant
from helpers.blobs import blobs, outputs, settings, softmax

OWN: dict[str, Any] = {"model": softmax, "data": blobs()}
PROFILES = "device,seconds_per_sample,down_mbps,up_mbps,latency\n"
FILES = {
    "profiles": (PROFILES + "".join(f"{device},0.01,9,9,0\n" for device in range(10)), ("0.01", "0.09")),
    "trace": ("device,start,end\n" + "".join(f"{device},0,9000\n" for device in range(10)), ("0,0,9000", "0,5,9000")),
}


def written(folder: Path, edited: bool = False) -> dict[str, Any]:
    """The fleet's section that names these files."""
    folder.mkdir(exist_ok=True)
    for name, (text, change) in FILES.items():
        (folder / f"{name}.csv").write_text(text.replace(*change, 1) if edited else text)
    return {name: str(folder / f"{name}.csv") for name in FILES}


def made(directory: Path, fleet: dict[str, Any], **more: Any) -> Result:
    table = settings(stop={"uploads": 8}, fleet=fleet, **more)
    return Experiment(table, **OWN).run(directory, extendable=True)


def begun(directory: Path, fleet: dict[str, Any]) -> None:
    """A run that was stopped after its first checkpoint."""

    def stop(desk: Any, line: Any) -> None:
        if desk.server.counters.received == 4:
            raise KeyboardInterrupt

    table = settings(stop={"uploads": 8}, fleet=fleet, checkpoint_seconds=1e-9)
    with pytest.raises(KeyboardInterrupt):
        Experiment(table, **OWN).run(directory, observe=stop)


@pytest.mark.parametrize("name", FILES)
def test_a_resume_vouches_for_the_fleets_files(name: str, tmp_path: Path) -> None:
    fleet = written(tmp_path / "files")
    begun(tmp_path / "run", fleet)
    file = Path(fleet[name])
    file.write_text(file.read_text().replace(*FILES[name][1], 1))
    with pytest.raises(UserError, match=rf"fleet\.{name} = .*: not the file that the recipe names: .*{name}_sha256 = "):
        Experiment.of_run(tmp_path / "run", **OWN).run(resume=True)
    written(tmp_path / "files")
    whole = made(tmp_path / "whole", fleet)
    assert outputs(Experiment.of_run(tmp_path / "run", **OWN).run(resume=True)) == outputs(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_run_with_an_edited_file_is_not_gone_on_with(name: str, tmp_path: Path) -> None:
    fleet = written(tmp_path / "files")
    made(tmp_path / "run", {name: fleet[name]})
    written(tmp_path / "files", edited=True)
    longer = Experiment(settings(stop={"uploads": 9}, fleet={name: fleet[name]}), **OWN)
    with pytest.raises(UserError, match=rf"fleet\.{name}_sha256 is "):
        longer.run(tmp_path / "run", resume=True)
    again = Experiment(settings(stop={"uploads": 9}, fleet={name: written(tmp_path / "moved")[name]}), **OWN)
    assert again.run(tmp_path / "run", resume=True).summary["uploads"] == 9


def test_a_runs_recipe_takes_another_file(tmp_path: Path) -> None:
    made(tmp_path / "run", written(tmp_path / "files"))
    other = written(tmp_path / "others", edited=True)
    text = (tmp_path / "run/config.toml").read_text().replace("given-in-python", "softmax", 1)
    (tmp_path / "recipe.toml").write_text(text.replace("given-in-python", "fashion-mnist-small"))
    changes = {"fleet.profiles": other["profiles"], "fleet.trace": "none", "timing_only": True}
    result = Experiment(tmp_path / "recipe.toml", changes).run(tmp_path / "again")
    assert result.config["fleet"]["profiles"] == other["profiles"]
    assert "trace_sha256" not in result.config["fleet"]
    with pytest.raises(UserError, match="not the file that the recipe names"):
        Experiment(tmp_path / "recipe.toml", changes | {"fleet.profiles_sha256": "0" * 64}).run(tmp_path / "never")


def test_a_run_that_is_older_than_the_digests_goes_on(tmp_path: Path) -> None:
    fleet = written(tmp_path / "files")
    made(tmp_path / "run", fleet)
    path = tmp_path / "run" / "config.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "_sha256" not in line))
    assert Experiment.of_run(tmp_path / "run", uploads=9, **OWN).run(resume=True).summary["uploads"] == 9


def test_a_study_sees_that_a_file_is_another(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'model = "softmax"\ntiming_only = true\nalgorithm = "fedavg"\nstop.uploads = 3\nfleet.devices = 10'
    )

    def cell(fleet: dict[str, Any]) -> Any:
        overrides = [f"fleet.{key}={path}" for key, path in fleet.items()]
        return cells(recipe, [Variant("fedavg", "fedavg", ())], [0], tmp_path / "out", overrides)[0]

    first = cell(written(tmp_path / "files"))
    Experiment(first.config).run(first.directory)
    assert cell(written(tmp_path / "moved")).stage() == "finished"
    with pytest.raises(UserError, match=r"other settings \(fleet.profiles_sha256, fleet.trace_sha256\)"):
        cell(written(tmp_path / "files", edited=True)).stage()


def test_fleets_of_two_files_are_two_tasks_in_a_report(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "one", written(tmp_path / "files"))
    made(tmp_path / "runs" / "same", written(tmp_path / "moved"), seed=1)
    made(tmp_path / "runs" / "other", written(tmp_path / "files", edited=True))
    found = leagues(find([tmp_path / "runs"]))
    assert sorted(len(standing.runs) for league in found for standing in league.standings) == [1, 2]
    assert len({league.title for league in found}) == 2
    assert all(len(league.title) < 100 for league in found)
