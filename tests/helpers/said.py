"""What the command line says to a user's mistake: for tests."""

from __future__ import annotations

from typer.testing import CliRunner

from fedasmu.cli import app
from fedasmu.errors import UserError


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)
