"""A tool call goes to the workers only when its round is where every engine finds it, and its turn is still ours."""

from dialog_engine.chat.journal import Journal, NotSharedError
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger, replies
from plugins_contract.ledger.scripts import AsyncCommands
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome

_MOVED = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "another engine has taken its turn over")


class SharedFirstLedger(EngineLedger):
    """The ledger, behind the journal."""

    def __init__(self, redis: AsyncCommands, keys: Keys, journal: Journal) -> None:
        super().__init__(redis, keys)
        self._journal = journal

    async def enqueue(self, request: ToolCallRequested, *, backlog_limit: int = 0) -> replies.Enqueued:
        """As the ledger does. A call of a turn that another engine runs by now is not enqueued: it is that engine's.

        Raises:
            ConnectionError: Redis is away.
        """
        try:
            ours = await self._journal.settled(request.turn_id)
        except NotSharedError as error:
            raise ConnectionError(str(error)) from error
        if not ours:
            return replies.AlreadyFinished(_MOVED)
        return await super().enqueue(request, backlog_limit=backlog_limit)
