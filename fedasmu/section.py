"""What the sections of a recipe have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

# Absolute, so that a run directory can be resumed from anywhere.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
