"""What the sections of a config share: strict validation, derived values, types of keys."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from toytrans.choices import FaultName
from toytrans.errors import UserError
from toytrans.sealed import is_sealed, opened
from toytrans.user_code import absolute, is_reference


def _absolute(paths: str | tuple[str, str]) -> str | tuple[str, str]:
    if isinstance(paths, str):
        return str(Path(paths).absolute())
    return str(Path(paths[0]).absolute()), str(Path(paths[1]).absolute())


Length = Annotated[int, Field(ge=0, le=2**16)]
Range = Annotated[tuple[Length, Length], Strict(False)]
Paths = str | tuple[str, str]
"""A file, or two files of parallel text."""

AbsolutePaths = Annotated[
    str | Annotated[tuple[str, str], Strict(False)], AfterValidator(_absolute)
]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Examples = Annotated[int, Field(ge=1, le=10**7)]
Symbols = Annotated[int, Field(ge=1, le=10**5)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Depth = Annotated[int, Field(ge=1, le=1000)]
Proportion = Annotated[float, Field(ge=0, le=1)]


def refusal(key: str, reason: str) -> PydanticCustomError:
    """What a validator raises for a key of its section, or for a path from there."""
    return PydanticCustomError("refusal", "{reason}", {"key": key, "reason": reason})


T = TypeVar("T")


def _own(text: str) -> str:
    try:
        return absolute(text)
    except ValueError as error:
        raise refusal("", str(error)) from None


def _kind(value: Any) -> str:
    return "[own]" if isinstance(value, str) and is_reference(value) else "[built in]"


Own = Annotated[str, AfterValidator(_own), Field(json_schema_extra={"pattern": ":"})]
"""Code of the user's: FILE.py:NAME, saved with an absolute path."""

OrOwn = Annotated[
    Annotated[T, Tag("[built in]")] | Annotated[Own, Tag("[own]")], Discriminator(_kind)
]
"""Something built in, by its name, or code of the user's."""


def _whole(seal: str) -> str:
    try:
        opened(seal)
    except UserError as error:
        raise refusal("", str(error).partition(": ")[2]) from None
    return seal


def _kind_of_fault(value: Any) -> str:
    return "[sealed]" if isinstance(value, str) and is_sealed(value) else "[named]"


Sealed = Annotated[str, AfterValidator(_whole), Field(json_schema_extra={"pattern": "^sealed-"})]
OrSealed = Annotated[
    Annotated[FaultName, Tag("[named]")] | Annotated[Sealed, Tag("[sealed]")],
    Discriminator(_kind_of_fault),
]
"""A fault, by its name or in an exercise's seal."""


class Section(BaseModel):
    """Part of a config. Unknown keys, loose types and changes are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_by_name=True,  # as `model_copy` and `_resolve` give them
        serialize_by_alias=True,
    )

    @field_validator("*")
    @classmethod
    def _refuse_subnormal(cls, value: Any) -> Any:
        """Training takes such numbers for 0, and so would the reader of a saved config."""
        if isinstance(value, float) and 0 < abs(value) < sys.float_info.min:
            raise refusal("", f"found {value}, too small for a number that is not 0")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _resolve(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        section = validate(values)
        derived = section._derived()
        if any(getattr(section, name) != value for name, value in derived.items()):
            section = validate(dict(section) | derived)
        section._check()
        return section

    def _derived(self) -> dict[str, Any]:
        """Values that follow from other keys."""
        return {}

    def _check(self) -> None:
        """Raise `refusal` where keys contradict each other."""

    def _defaults(self, **values: Any) -> dict[str, Any]:
        """Those of the values whose key is null."""
        return {name: value for name, value in values.items() if getattr(self, name) is None}

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise refusal(name, reason)
