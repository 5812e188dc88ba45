"""What the documentation shows is true: the README's code runs, and every command in the docs exists as shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from fedasmu.cli import app
from helpers.repository import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The lines of console blocks that start our command, without a prompt, comments and continuation marks."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedasmu ")]


EVERY_COMMAND = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(
    ("page", "command"), EVERY_COMMAND, ids=[f"{page.stem}: {' '.join(command)}" for page, command in EVERY_COMMAND]
)
def test_every_command_in_the_docs_exists(page: Path, command: list[str]) -> None:
    """Parsed as the command line would parse it, down to the options of the subcommand, without being run."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    while isinstance(group, TyperGroup) and command:
        name, found, command = group.resolve_command(context, command)
        assert found is not None, f"{page}: no command {name}"
        group = found
    if "--help" not in command:
        group.make_context("fedasmu", list(command))


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture
def beside_the_recipes(tmp_path: Path) -> Path:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    return tmp_path


@pytest.mark.parametrize("number", range(len(blocks(ROOT / "README.md", "python"))))
def test_the_readmes_python_runs(number: int, beside_the_recipes: Path) -> None:
    code = blocks(ROOT / "README.md", "python")[number]
    done = run(beside_the_recipes, "-c", code)
    assert done.returncode == 0, done.stderr


def test_the_readmes_commands_run(beside_the_recipes: Path) -> None:
    """In order, since one resumes what another began; runs are cut to a few uploads."""
    for command in commands(ROOT / "README.md"):
        cut = ["--set", "stop.uploads=4"] if command[0] in ("run", "compare") and "--resume" not in command else []
        done = run(beside_the_recipes, "-m", "fedasmu", *command, *cut)
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"


def test_links_within_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_to_explore_is_in_the_gallery() -> None:
    results = ROOT / "docs" / "results"
    pages = {str(path.relative_to(results)) for path in results.rglob("*.html")}
    gallery = (results / "README.md").read_text().partition("## Gallery")[2].partition("\n## ")[0]
    assert set(re.findall(r"\]\(([^)]*\.html)\)", gallery)) == pages != set()
    hidden = [page for page in pages if (results / page).with_suffix(".md").exists()]  # in the site, by this page
    assert hidden == []


def test_every_decision_is_in_the_index_under_its_own_title() -> None:
    folder = ROOT / "docs" / "decisions"
    titles = {path.name: path.read_text().partition("\n")[0] for path in sorted(folder.glob("0*.md"))}
    lines = [f"- [{name[:4]}]({name}) {title.removeprefix(f'# {name[:4]}. ')}" for name, title in titles.items()]
    assert len({name[:4] for name in titles}) == len(titles), "a number is given once"
    listed = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("- ")]
    assert listed == lines


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", str(ROOT / "docs"), "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "algorithms" / "fedasmu.html").is_file()
