"""The documentation site: `make docs`. The sources are plain Markdown, as they read in the repository."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import fedasmu

project = "FedASMU"
version = release = fedasmu.__version__
copyright = "the FedASMU maintainers, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 3
root_doc = "README"
exclude_patterns = ["notebooks"]
html_theme = "furo"
html_title = f"FedASMU {fedasmu.__version__}"
html_copy_source = False
nitpicky = True

SECTIONS = {
    "Start": ["tutorial*"],
    "How to": ["how-to/*"],
    "Explanation": ["explanation/*"],
    "Reference": ["reference/*"],
    "Methods": ["algorithms/*"],
    "Results": ["results/*", "results/paper-fleet/*"],
    "Decisions": ["decisions/*"],
}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Every page is in the side bar without a list to keep: the folders are the table of contents."""
    if page == root_doc:
        for caption, patterns in SECTIONS.items():
            options = [":hidden:", ":glob:", f":caption: {caption}", "", *patterns]
            source[0] += "\n".join(["\n```{toctree}", *options, "```\n"])


def open_live_pages(app: Sphinx, tree: nodes.document, page: str) -> None:
    """A link to a report's page opens it; Sphinx would offer it as a download, as it rightly does with other files."""
    for link in list(tree.findall(addnodes.download_reference)):
        if link["reftarget"].endswith(".html"):
            link.replace_self(nodes.reference("", "", *link.children, refuri=link["reftarget"]))


def copy_live_pages(app: Sphinx, error: Exception | None) -> None:
    for source in Path(app.srcdir).glob("results/**/*.html"):
        target = app.outdir / source.relative_to(app.srcdir)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (app.outdir / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">\n')


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", add_contents)
    app.connect("doctree-resolved", open_live_pages)
    app.connect("build-finished", copy_live_pages)
    return {"parallel_read_safe": True}
