"""The engine's data types: messages, events of a model, events of a turn. Closed unions, for `match`.

Everything else imports them from here. A new type has its one place in the module of its subject.
"""

from dialog_engine.model.brought import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.call_updates import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.conversation import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.messages import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.model_events import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.sampling import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from dialog_engine.model.turn_events import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
