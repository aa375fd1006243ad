"""The tables of the store: one `schema.sql` and numbered migrations per dialect.

`schema.sql` creates a new database. Migration n upgrades a database from version n - 1 to n; a test checks that both
lead to the same tables. The database stores the release that migrated it and two versions: the one that its tables
have, and the one that an engine must know to start on them. An engine of the previous release may start where later
versions only added.
"""

from importlib.resources import files

from callstream_runtime.version import __version__
from dialog_engine.errors import ConfigurationError

RELEASE = __version__
OLDEST = {"sqlite": 7, "postgres": 3}
"""The oldest versions that this release migrates: those of 0.1.0."""
NEEDED = {"postgres": 9, "sqlite": 12}
"""The version that an engine must know to start on tables of this release: it may ignore what later versions added."""


def schema(dialect: str) -> str:
    """The statements that create the tables of the newest version."""
    return (_folder(dialect) / "schema.sql").read_text()


def migrations(dialect: str) -> dict[int, str]:
    """The migrations of a dialect in their order, by the version that each leads to."""
    found = {int(file.name[:4]): file.read_text() for file in _folder(dialect).iterdir() if file.name[:4].isdigit()}
    return dict(sorted(found.items()))


def newest(dialect: str) -> int:
    """The version of this release."""
    return max(migrations(dialect), default=1)


def check_not_too_old(dialect: str, found: int) -> None:
    """Refuse a database from before the first release.

    Raises:
        ConfigurationError: it names both versions.
    """
    if found < OLDEST[dialect]:
        raise ConfigurationError(
            f"the database has schema version {found}, and dialog-engine {RELEASE} migrates {OLDEST[dialect]} and newer"
        )


def needed(dialect: str, version: int) -> int:
    """The version that an engine must know to start on tables of `version`."""
    return min(version, NEEDED[dialect])


def check_known(dialect: str, found: int, made_by: str) -> None:
    """Refuse a database of a later release that needs a version which this one does not know.

    Raises:
        ConfigurationError: it names both releases.
    """
    if found > newest(dialect):
        raise ConfigurationError(
            f"the database has schema version {found}, made by dialog-engine {made_by or 'of a later release'}; this is"
            f" dialog-engine {RELEASE}, which knows versions up to {newest(dialect)}: upgrade this engine"
        )


def _folder(dialect: str):
    return files(__name__) / dialect
