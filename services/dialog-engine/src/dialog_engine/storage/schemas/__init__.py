"""The tables of the store: one `schema.sql` and numbered migrations per dialect.

A new database is made by `schema.sql`. Migration n makes a database of version n - 1 one of version n; what both make
is the same, which a test holds. The version and the release that made it are in the database itself.
"""

from importlib.metadata import version
from importlib.resources import files

from dialog_engine.errors import ConfigurationError

RELEASE = version("dialog-engine")


def schema(dialect: str) -> str:
    """The statements that make an empty database one of the newest version."""
    return (_folder(dialect) / "schema.sql").read_text()


def migrations(dialect: str) -> dict[int, str]:
    """The migrations of a dialect in their order, by the version that each makes."""
    found = {int(file.name[:4]): file.read_text() for file in _folder(dialect).iterdir() if file.name[:4].isdigit()}
    return dict(sorted(found.items()))


def newest(dialect: str) -> int:
    """The version that this release makes and knows."""
    return max(migrations(dialect), default=1)


def check_known(dialect: str, found: int, made_by: str) -> None:
    """Refuse a database of a later release: this one would read and write it wrongly.

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
