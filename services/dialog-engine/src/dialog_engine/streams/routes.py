"""Where the events of the outbox go."""

from collections.abc import Collection, Mapping

from dialog_engine.errors import ConfigurationError
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED


def check_routes(event_types: Collection[str], routes: Mapping[str, str]) -> None:
    """Every event type needs a route, and a tool call's is fixed.

    Raises:
        ConfigurationError: it names the type.
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
