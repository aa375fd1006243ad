"""What is shown and logged of the connection to one server: its state, and what is wrong with it."""

import logging
from collections.abc import Callable

from callstream_runtime.visible import visible
from plugins_contract.catalog import BreakerState, ServerState
from plugins_mcp.mcp.circuit_breaker import CircuitBreaker
from plugins_mcp.mcp.spec import ServerSpec

log = logging.getLogger(__name__)

MAX_REASON = 1_000
"""Characters of what is wrong with a server that are kept and logged. It may have sent an error of 32 MB."""


class ServerStatus:
    """Without the server's secrets. Its address is for operators, and is logged only."""

    def __init__(self, spec: ServerSpec, breaker: CircuitBreaker, on_change: Callable[[], None]) -> None:
        """`on_change` is called after each change of the state; it must not block."""
        self._spec = spec
        self._breaker = breaker
        self._on_change = on_change
        self._owner_state = ServerState.CONNECTING
        self._error: str | None = None

    @property
    def state(self) -> ServerState:
        """The server's state. A server that can be listed but does not answer calls has failed as well."""
        not_answering = self._breaker.state is not BreakerState.CLOSED and self._owner_state is ServerState.READY
        return ServerState.FAILED if not_answering else self._owner_state

    @property
    def error(self) -> str | None:
        """What is wrong, without the server's secrets and addresses; None when nothing is."""
        if self._error is not None or self._breaker.reason is None:
            return self._error
        return self._spec.redact_for_users(self._breaker.reason)[:MAX_REASON]

    def listed(self, *, changed: bool) -> None:
        """The server was listed; `changed`: its listing differs from the one before."""
        self._set(ServerState.READY, None, notify=changed)

    def failed(self, reason: str, standard_error: str) -> None:
        """The server could not be reached. What it wrote to its standard error is logged only."""
        before = self._error
        self._set(ServerState.FAILED, visible(self._spec.redact_for_users(reason)[:MAX_REASON]))
        # A server that stays away is tried twice a minute: only a new reason is logged as a warning.
        level = logging.DEBUG if self._error == before else logging.WARNING
        said = f"; standard error: {self._spec.redact(standard_error)}" if standard_error else ""
        log.log(level, "MCP server %r is not reachable: %s%s", self._spec.name, self._logged(reason), said)

    def log_circuit(self, before: BreakerState) -> None:
        """The circuit has another state than `before`."""
        name, pause = self._spec.name, self._breaker.retry_in()
        why = self._logged(self._breaker.reason or self._error or "")
        match self._breaker.state:
            case BreakerState.OPEN:
                # Only the change from closed is logged as a warning, not each failed probe after it.
                level = logging.WARNING if before is BreakerState.CLOSED else logging.DEBUG
                log.log(level, "MCP server %r: circuit open, calls are refused for %.1f s: %s", name, pause, why)
            case BreakerState.HALF_OPEN:
                log.debug("MCP server %r: circuit half-open, a probe is under way", name)
            case BreakerState.CLOSED:
                log.info("MCP server %r: circuit closed", name)

    def _set(self, state: ServerState, error: str | None, *, notify: bool = False) -> None:
        if notify or (state, error) != (self._owner_state, self._error):
            self._owner_state, self._error = state, error
            self._on_change()

    def _logged(self, reason: str) -> str:
        return visible(self._spec.redact(reason)[:MAX_REASON])
