"""Where settings come from, and settings by subject: nested models whose variables keep their own, flat names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

SECRETS_DIRS = [path for path in (Path("/run/callstream"), Path("/run/secrets")) if path.is_dir()]
"""Folders with one file per setting: those that deploy/compose creates, and those of the operator, which win."""


class Subject(BaseSettings):
    """The settings of one subject. Each field is named like its environment variable, in lower case."""

    model_config = SettingsConfigDict(
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        secrets_dir=SECRETS_DIRS or None,
    )


class InvalidSettingsError(ValueError):
    """Settings are wrong. The text has one line for each, by the name of its variable, and shows no value."""


_S = TypeVar("_S", bound=BaseModel)


def read_settings(kind: type[_S], **values: Any) -> _S:
    """The settings of `kind`, from the environment, `.env` and files of secrets; `values` win over all of them.

    A `kind` is a `Subject`, or a model whose fields are such kinds. Its parts are all read from the same sources.

    Raises:
        InvalidSettingsError: the text names every setting that is wrong.
    """
    problems: list[str] = []
    settings = _read(kind, values, problems)
    if settings is None:
        raise InvalidSettingsError("\n".join(dict.fromkeys(problems)))
    return settings


def fields_of(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every setting of `kind` and of its parts, by the name of its variable in lower case."""
    if issubclass(kind, Subject):
        return dict(kind.model_fields)
    return {name: field for part in _parts(kind).values() for name, field in fields_of(part).items()}


def readable_by_all(settings: BaseModel) -> list[str]:
    """A warning for each file of keys in the settings that every user of this machine can read."""
    values = {name: value for subject in _subjects(settings) for name, value in subject}
    files = [
        (name.upper(), path)
        for name, path in values.items()
        if name.endswith(("_key_file", "_keys_file")) and path and path.exists()
    ]
    return [
        f"{name}: every user of this machine can read {path}: make it private with `chmod o-rwx {path}`"
        for name, path in files
        if path.stat().st_mode & 0o006
    ]


def _subjects(settings: BaseModel) -> Iterator[Subject]:
    if isinstance(settings, Subject):
        yield settings
    else:
        for name in type(settings).model_fields:
            yield from _subjects(getattr(settings, name))


def _read(kind: type[_S], values: dict[str, Any], problems: list[str]) -> _S | None:
    try:
        if issubclass(kind, Subject):
            return kind(**values)
        parts = {name: _read(part, values, problems) for name, part in _parts(kind).items()}
        return None if None in parts.values() else kind(**parts)
    except ValidationError as error:
        problems += _lines(error)
    except SettingsError as error:
        # The text names the field and the source; the cause may contain the value.
        problems.append(_not_json(str(error)))
    return None


def _parts(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    return {name: cast("type[BaseModel]", field.annotation) for name, field in kind.model_fields.items()}


def _lines(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, each['loc'])).upper()}: {each['msg']}".removeprefix(": ").replace("Value error, ", "")
        for each in error.errors(include_input=False, include_url=False)
    ]


def _not_json(text: str) -> str:
    name = re.search(r'field "(\w+)"', text)
    return f"{name[1].upper()}: is not valid JSON" if name else text
