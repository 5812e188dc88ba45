"""The table of settings on every method's page, made from the method's own fields: `make tables` writes them all."""

from __future__ import annotations

import re
from pathlib import Path

from fedasmu.algorithms import ALGORITHMS
from fedasmu.commands.listing import settings_of

PAGES = Path(__file__).parent / "algorithms"
TABLE = re.compile(r"^\| setting \|.*?(?=\n\n|\Z)", flags=re.MULTILINE | re.DOTALL)


def table(method: str) -> str:
    lines = ["| setting | default | allowed | what it is |", "|---|---|---|---|"]
    for row in settings_of(method):
        allowed = row["allowed"].replace("|", "\\|")
        lines.append(f"| `{row['key']}` | {row['default']} | {allowed} | {row['meaning']} |")
    return "\n".join(lines)


def renewed(page: str, method: str) -> str:
    """The page with its table as it should be."""
    text, count = TABLE.subn(lambda found: table(method), page.rstrip("\n"))
    if count != 1:
        raise ValueError(f"{method}: {count} tables of settings on its page")
    return text + "\n"


if __name__ == "__main__":
    for name in (method.names()[0] for method in ALGORITHMS):
        page = PAGES / f"{name}.md"
        page.write_text(renewed(page.read_text(), name))
