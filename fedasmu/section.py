"""What the sections of a recipe have in common."""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

# Absolute, so that a run directory can be resumed from anywhere.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
SHA256 = "^[0-9a-f]{64}$"
NONE = "none"  # TOML has no word for it


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, table: Any) -> Any:
        """`none` is nothing, wherever a key may hold nothing."""
        if not isinstance(table, dict):
            return table
        return {key: None if value == NONE and may_be_none(cls, key) else value for key, value in table.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _keep_kinds(cls, value: Any, info: ValidationInfo) -> Any:
        """What pydantic would silently make a number of: 1e3 of a count, true of anything."""
        kinds = _kinds(cls, str(info.field_name))
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError(f"{str(value).lower()} is not a number")
        if isinstance(value, float) and int in kinds and float not in kinds and value.is_integer():
            raise ValueError(f"a whole number is written without a point or an exponent: {int(value)}")
        return value

    def plain(self) -> dict[str, Any]:
        """The settings as TOML can hold them. What is none is left out, unless that would mean something else."""
        table = self.model_dump(mode="json", exclude_none=True)
        emptied = [key for key, value in self if value is None and type(self).model_fields[key].default is not None]
        return table | dict.fromkeys(emptied, NONE)


def may_be_none(section: type[BaseModel], key: str) -> bool:
    return NoneType in _kinds(section, key)


def _kinds(section: type[BaseModel], key: str) -> set[Any]:
    """The types that a key may have; none for one that there is not."""
    field = section.model_fields.get(key)
    kind = None if field is None else field.annotation
    return set(get_args(kind)) if get_origin(kind) in (Union, UnionType) else {kind}
