"""`${VAR}` in the file of servers. Pure."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(
    r"\$\{(?P<input>input:[^}]*)\}|\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}", re.ASCII
)

_PLAIN = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"})
"""Variables that hold no secret: hiding a home directory would only make errors harder to read."""


class UndefinedVariableError(ValueError):
    """A text needs a variable that has no value. Names the field and the variable, never a value."""


class Interpolator:
    """Replaces `${VAR}`, `${env:VAR}` and `${VAR:-default}`; what looks otherwise stays as it is.

    `used` collects the values that came from the environment: they are taken for secrets.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.used: set[str] = set()

    def __call__(self, text: str, where: str) -> str:
        """`text`, which is that of the field `where`, with its variables replaced.

        Raises:
            UndefinedVariableError: a variable has neither a value nor a default, or asks a person for its value.
        """
        return _REFERENCE.sub(lambda reference: self._value(reference, where), text)

    def _value(self, reference: re.Match[str], where: str) -> str:
        if asks := reference["input"]:
            raise UndefinedVariableError(
                f"{where}: ${{{asks}}} asks a person, and nobody is here: use an environment variable"
            )
        name, default = reference["name"], reference["default"]
        if name in self._environment:
            if name not in _PLAIN:
                self.used.add(self._environment[name])
            return self._environment[name]
        if default is None:
            raise UndefinedVariableError(
                f"{where}: environment variable {name} is not set: set it, or write ${{{name}:-default}}"
            )
        return default
