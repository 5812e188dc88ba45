"""What the sections of a recipe have in common."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

# Absolute, so that a run directory can be resumed from anywhere.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
NONE = "none"  # TOML has no word for it


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, table: Any) -> Any:
        """`none` is nothing, wherever a key may hold nothing."""
        if not isinstance(table, dict):
            return table
        return {key: None if value == NONE and _may_be_none(cls, key) else value for key, value in table.items()}

    def plain(self) -> dict[str, Any]:
        """The settings as TOML can hold them. What is none is left out, unless that would mean something else."""
        table = self.model_dump(mode="json", exclude_none=True)
        emptied = [key for key, value in self if value is None and type(self).model_fields[key].default is not None]
        return table | dict.fromkeys(emptied, NONE)


def _may_be_none(section: type[BaseModel], key: str) -> bool:
    field = section.model_fields.get(key)
    return field is not None and NoneType in get_args(field.annotation)
