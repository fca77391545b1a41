"""The settings table as a pydantic-settings model: layers of text and TOML become one `Settings`.

Values are keyed by the short environment name of their row, in every layer and in errors. Imported
only when settings are read: pydantic takes longer than `--help` may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_type_hints

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    FiniteFloat,
    create_model,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from glm53ctl.env import Environ, Row, Settings, rows

Layer = Mapping[str, object]


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _text(value: object) -> object:
    """Bytes of the command line that are no UTF-8 cannot be written into a plan; nothing is no value.

    An empty variable never comes here: it counts as not set.
    """
    if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
        raise PydanticCustomError("encoding", "must be UTF-8 text")
    if isinstance(value, str) and not value.strip():
        raise PydanticCustomError("empty", "must not be empty")
    return value


def _in_base_units(value: object, *, row: Row) -> object:
    if isinstance(value, int | float):
        if value < 0:
            raise PydanticCustomError("negative", "must not be negative")
        if value < row.least:
            raise PydanticCustomError("small", "must be at least {least}", {"least": row.least})
        if row.most is not None and value > row.most:
            raise PydanticCustomError("large", "must be at most {most}", {"most": row.most})
        if value * row.unit == float("inf"):
            raise PydanticCustomError("large", "is too large")
        return value if row.unit == 1 else int(value * row.unit)
    return value


def _kind(row: Row, hint: Any) -> Any:
    """The type of a row as a user writes it, and how it becomes the type of `Settings`."""
    if hint == tuple[str, ...]:
        return Annotated[hint, NoDecode, BeforeValidator(_words)]
    written = hint if row.unit == 1 else FiniteFloat
    return Annotated[
        written, BeforeValidator(_text), AfterValidator(partial(_in_base_units, row=row))
    ]


def _fields() -> dict[str, Any]:
    hints = get_type_hints(Settings)
    return {
        row.field_name: (
            _kind(row, hints[row.field_name]),
            Field(row.default, validation_alias=AliasChoices(*row.names)),
        )
        for row in rows()
    }


class _Frozen(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, case_sensitive=True, validate_default=False)


Table: type[_Frozen] = create_model("Table", __base__=_Frozen, **_fields())


class _Environment(EnvSettingsSource):
    """The environment's layer, from a snapshot in place of the process's own variables."""

    def __init__(self, environ: Environ) -> None:
        self._environ = environ
        super().__init__(Table)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name: self._environ.get(name) for name in self._environ.values}


def resolve(flags: Layer, environ: Environ, files: Sequence[Layer]) -> Settings:
    """One `Settings`: flags win over the environment, that over the files in their order.

    Raises pydantic's ValidationError, whose locations are the short names.
    """

    class Layers(Table):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del env_settings, dotenv_settings, file_secret_settings  # only what `resolve` was given
            below = (InitSettingsSource(settings_cls, dict(file)) for file in files)
            return init_settings, _Environment(environ), *below

    return Settings(**dict(Layers(**flags)))
