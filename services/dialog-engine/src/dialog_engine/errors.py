"""The engine's named failures. Adapters translate what their libraries raise into these, once."""


class EngineError(Exception):
    """Something the engine expects to go wrong. `code` is stable and shown to clients."""

    code = "INTERNAL_ERROR"


class LLMError(EngineError):
    """The model could not be reached or refused. The text is fit for users: it holds no secrets."""

    code = "MODEL_ERROR"


class LLMUnavailableError(LLMError):
    """No connection, a timeout, or a server error of the provider; trying later may help."""

    code = "MODEL_UNAVAILABLE"


class LLMRateLimitedError(LLMError):
    """The provider said: too many requests."""

    code = "MODEL_RATE_LIMITED"


class LLMAuthenticationError(LLMError):
    """The provider did not accept the key."""

    code = "MODEL_AUTHENTICATION"


class LLMRequestError(LLMError):
    """The provider did not accept the request itself."""

    code = "MODEL_REQUEST"


class LLMStreamEmptyError(LLMError):
    """The stream ended with neither text nor a tool call."""

    code = "MODEL_EMPTY"


class LLMStreamBrokenError(LLMUnavailableError):
    """The stream broke off before its end."""

    code = "MODEL_STREAM_BROKEN"


class SessionNotFoundError(EngineError):
    """There is no such session for this subject."""

    code = "SESSION_NOT_FOUND"


class TurnNotFoundError(EngineError):
    """There is no such turn for this subject."""

    code = "TURN_NOT_FOUND"


class TurnRunningError(EngineError):
    """The session has a running turn already."""

    code = "TURN_RUNNING"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} of this session is still running: wait for its end, or cancel it")
        self.turn_id = turn_id


class StorageUnavailableError(EngineError):
    """Nothing can be committed now (disk full, file locked or gone). Nothing was accepted."""

    code = "STORAGE_UNAVAILABLE"


class ConfigurationError(EngineError):
    """A setting is wrong; the text names it and says what to do."""

    code = "CONFIGURATION"
