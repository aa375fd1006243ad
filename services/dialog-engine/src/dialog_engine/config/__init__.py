"""The settings of each subject, and how they are read: from the environment, `.env` and files of secrets."""

from typing import TypeVar

from pydantic import BaseModel

from callstream_runtime.settings_sources import InvalidSettingsError, read_settings
from dialog_engine.errors import ConfigurationError

_S = TypeVar("_S", bound=BaseModel)


def load(kind: type[_S]) -> _S:
    """Read the settings of a kind.

    Raises:
        ConfigurationError: the text names every invalid setting, and contains no value of a secret.
    """
    try:
        return read_settings(kind)
    except InvalidSettingsError as error:
        raise ConfigurationError(str(error)) from None
