"""The engine's named failures. Adapters translate what their libraries raise into these, once."""

from collections.abc import Mapping, Sequence


class EngineError(Exception):
    """Something the engine expects to go wrong. `code` is stable and shown to clients."""

    code = "INTERNAL_ERROR"


class LLMError(EngineError):
    """The model could not be reached or refused. The text is fit for users: it holds no secrets."""

    code = "MODEL_ERROR"


class LLMUnavailableError(LLMError):
    """No connection, a timeout, or a server error of the provider; trying later may help."""

    code = "MODEL_UNAVAILABLE"


class LLMOverloadedError(LLMUnavailableError):
    """The provider has more to do than it can: nothing is wrong with the request."""

    code = "MODEL_OVERLOADED"


class LLMRateLimitedError(LLMError):
    """The provider said: too many requests. `retry_after` is its own advice in seconds, None without one."""

    code = "MODEL_RATE_LIMITED"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LLMQuotaError(LLMError):
    """The account at the provider is used up, or not paid: waiting does not help."""

    code = "MODEL_QUOTA"


class LLMAuthenticationError(LLMError):
    """The provider did not accept the key."""

    code = "MODEL_AUTHENTICATION"


class LLMRequestError(LLMError):
    """The provider did not accept the request itself."""

    code = "MODEL_REQUEST"


class LLMContextLengthError(LLMRequestError):
    """The conversation is longer than the model can read."""

    code = "MODEL_CONTEXT_LENGTH"


class LLMToolsRejectedError(LLMRequestError):
    """The model, or the server it runs on, takes no tools."""

    code = "MODEL_TOOLS_REJECTED"


class LLMStreamEmptyError(LLMError):
    """The model replied with neither text for the user nor a tool call, also when it was asked once more."""

    code = "MODEL_EMPTY"


class LLMStreamBrokenError(LLMUnavailableError):
    """The stream broke off before its end."""

    code = "MODEL_STREAM_BROKEN"


class UnauthenticatedError(EngineError):
    """The request has no credential that is valid now. `signs_in`: people can get one by signing in on the page."""

    code = "UNAUTHORIZED"
    signs_in = False


class CredentialRevokedError(UnauthenticatedError):
    """The credential of a request that was accepted is not valid any more."""

    code = "CREDENTIAL_REVOKED"

    def __init__(self) -> None:
        super().__init__("the key or token that sent this message was revoked")


class TooManyAttemptsError(EngineError):
    """The address has failed too often, and has failed again. `retry_in` is in seconds."""

    code = "TOO_MANY_ATTEMPTS"

    def __init__(self, retry_in: int) -> None:
        super().__init__(
            f"too many requests from your address had no valid key or token: try again in {retry_in} seconds"
        )
        self.retry_in = retry_in


class ForbiddenError(EngineError):
    """The sender is known, and may not do this."""

    code = "FORBIDDEN"

    def __init__(self, text: str, subject: str = "") -> None:
        super().__init__(text)
        self.subject = subject


class NotServedError(EngineError):
    """There is no such resource at this port."""

    code = "NOT_FOUND"


class IdentityProviderError(EngineError):
    """The OpenID Connect provider cannot be asked now, or its answer is not usable."""

    code = "IDENTITY_PROVIDER_UNAVAILABLE"


class LimitExceededError(EngineError):
    """The subject consumes more than it may. `retry_in` is in seconds."""

    code = "LIMIT_EXCEEDED"

    def __init__(self, message: str, retry_in: int) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class SessionNotFoundError(EngineError):
    """There is no such session for this subject."""

    code = "SESSION_NOT_FOUND"


class TurnNotFoundError(EngineError):
    """There is no such turn for this subject."""

    code = "TURN_NOT_FOUND"


class TooManyBranchesError(EngineError):
    """As many turns as may follow one turn do."""

    code = "TOO_MANY_BRANCHES"

    def __init__(self, most: int) -> None:
        super().__init__(f"this message has {most} versions, and no more are allowed: go on from one of them")


class TurnRunningError(EngineError):
    """The session has a running turn already, or a message that is next.

    `waits_for` are the calls that only its user can let go on, in the JSON of a problem document, if all are such.
    """

    code = "TURN_RUNNING"

    def __init__(self, turn_id: str, waits_for: Sequence[Mapping[str, str]] = ()) -> None:
        what = "is still running, or is next: wait for its end, or cancel it"
        if waits_for:
            tools = ", ".join(sorted({each["toolName"] for each in waits_for}))
            what = f"waits for its user, about {tools}: answer at each answerUrl, cancel it, or send onBusy or"
            what += " onOpenQuestion, to let the message wait or to refuse what is open"
        super().__init__(f"turn {turn_id} of this session {what}")
        self.turn_id = turn_id
        self.waits_for = waits_for


class TurnStartedError(EngineError):
    """The message has begun its turn: it can be neither changed nor withdrawn."""

    code = "TURN_STARTED"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} has begun: its message can be neither changed nor withdrawn any more")
        self.turn_id = turn_id


class SentBeforeError(EngineError):
    """The client has sent this request before: `turn_id` is its turn, which may be over, withdrawn or deleted, and
    empty when it has begun none."""

    code = "SENT_BEFORE"

    def __init__(self, turn_id: str, session_id: str) -> None:
        super().__init__(f"this request was sent before, and is turn {turn_id} of session {session_id}")
        self.turn_id = turn_id
        self.session_id = session_id


class SessionNamedError(EngineError):
    """Another request has meanwhile begun a session with the same name: nothing was begun."""

    code = "SESSION_NAMED"


class TooManyAddedError(EngineError):
    """So much was added to a conversation that no more may be, before a question or at all."""

    code = "TOO_MANY_ADDED"


class ClientMessageReusedError(EngineError):
    """The client has used the name of a message for another text or choice."""

    code = "CLIENT_MESSAGE_REUSED"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"clientMessageId was used with another text or choice, for turn {turn_id}: use a new one")
        self.turn_id = turn_id


class IdempotencyKeyReusedError(EngineError):
    """The client has used an `Idempotency-Key` for another request."""

    code = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, turn_id: str) -> None:
        super().__init__("Idempotency-Key was used within 24 hours with another path or body: use a new one")
        self.turn_id = turn_id


class TurnCrashesError(EngineError):
    """Engines that ran the turn died, again and again, before it came any further."""

    code = "TURN_CRASHES"


class TurnFencedError(EngineError):
    """Another engine runs the turn by now, or it has ended: nothing of it may be written here."""

    code = "TURN_FENCED"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} is not run by this engine any more")


class TurnParkedError(EngineError):
    """The turn waits for people only, and no engine runs it: nothing of it may be written here."""

    code = "TURN_PARKED"


class ApprovalError(EngineError):
    """A decision on a waiting tool call cannot be taken. The text says why, and what holds instead."""

    code = "APPROVAL_NOT_TAKEN"


class ApprovalNotFoundError(ApprovalError):
    """The turn has no such call, or the call needs no approval."""

    code = "APPROVAL_NOT_FOUND"


class AmbiguousCallError(ApprovalError):
    """Several calls that wait have this id: a provider's ids are unique in one message at best."""

    code = "AMBIGUOUS_CALL"


class ApprovalDecidedError(ApprovalError):
    """It was decided before, and differently, or the call has its outcome already. `stands` says so in JSON."""

    code = "APPROVAL_DECIDED"

    def __init__(self, message: str, stands: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.stands = stands or {}


class ApprovalExpiredError(ApprovalError):
    """There was no decision in time."""

    code = "APPROVAL_EXPIRED"


class ApprovalStaleError(ApprovalError):
    """The decision is on an earlier question."""

    code = "APPROVAL_STALE"


class ToolChangedError(ApprovalError):
    """The tool is not what it was when the question was put, or is not there now."""

    code = "TOOL_CHANGED"


class ArgumentsRefusedError(ApprovalError):
    """The arguments do not fit the tool. `field` is where."""

    code = "INVALID_ARGUMENTS"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class ClientToolError(EngineError):
    """A tool that a request brings cannot be offered. `number` is its place, and `field` what is wrong of it."""

    code = "CLIENT_TOOL_REFUSED"

    def __init__(self, number: int | None, field: str, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.field = field


class ClientToolsNotNowError(EngineError):
    """An engine of an earlier release lives, which would not wait for the results of a client."""

    code = "CLIENT_TOOLS_NOT_NOW"

    def __init__(self) -> None:
        super().__init__("tools of clients cannot be offered while engines are being updated: try again later")


class ClientCallNotFoundError(EngineError):
    """The turn has no such call, or the call is not one of a client's tool."""

    code = "CLIENT_CALL_NOT_FOUND"


class ClientCallAnsweredError(EngineError):
    """The call has another result, or waits for none any more. `stands` says so in JSON."""

    code = "CLIENT_CALL_ANSWERED"

    def __init__(self, message: str, stands: Mapping[str, object]) -> None:
        super().__init__(message)
        self.stands = stands


class StorageUnavailableError(EngineError):
    """Nothing can be committed now (disk full, database away). Nothing was accepted, unless the text says otherwise."""

    code = "STORAGE_UNAVAILABLE"


class ConfigurationError(EngineError):
    """A setting is wrong; the text names it and says what to do."""

    code = "CONFIGURATION"
