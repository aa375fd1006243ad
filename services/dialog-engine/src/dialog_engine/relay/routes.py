"""The streams that the rows of the outbox are published to, by type of event."""

from collections.abc import Collection, Mapping

from dialog_engine.errors import ConfigurationError
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED


def check_routes(event_types: Collection[str], routes: Mapping[str, str]) -> None:
    """Check that every event type has a route, and that tool calls go to the stream that workers read.

    Raises:
        ConfigurationError: a route is missing or wrong; the text names the event type.
    """
    missing = sorted(set(event_types) - set(routes))
    if missing:
        raise ConfigurationError(
            f"OUTBOX_ROUTES has no stream for {', '.join(missing)}: add one, such as"
            f' {{"{missing[0]}": "events.analytics"}}'
        )
    if routes[TOOL_CALL_REQUESTED] != "events.plugins":
        raise ConfigurationError(
            f"OUTBOX_ROUTES sends {TOOL_CALL_REQUESTED} to {routes[TOOL_CALL_REQUESTED]!r}: workers read"
            " events.plugins only"
        )
