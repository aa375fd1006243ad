"""Settings of services that come from no environment, `.env` or file of secrets."""

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from callstream_runtime.settings_sources import Subject

_S = TypeVar("_S", bound=BaseModel)
Plain = str | int | float | None


def settings_of(kind: type[_S], values: dict[str, Any]) -> _S:
    """The settings of `kind` with these values, as `read_settings` has them.

    A subject that has the same plain values again is copied: reading all subjects takes 40 ms of processor time, which
    is half of the start of an engine. Raises ValueError for a wrong value.
    """
    fields = kind.model_fields
    if not issubclass(kind, Subject):
        return kind(**{name: settings_of(field.annotation, values) for name, field in fields.items()})  # type: ignore[arg-type]
    own = {name: values[name] for name in fields if name in values}
    if all(isinstance(value, Plain) for value in own.values()):
        return _read(kind, *own.items()).model_copy()
    return _from_nowhere(kind, own)


@cache
def _read(kind: type[_S], *values: tuple[str, Plain]) -> _S:
    return _from_nowhere(kind, dict(values))


def _from_nowhere(kind: type[_S], values: dict[str, Any]) -> _S:
    return kind(_env_prefix="NO_VARIABLE_IS_CALLED_", _env_file=None, **values)
