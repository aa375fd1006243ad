"""Counts the facts of parts that have one or two of them. Parts with more of them own a port for an observer."""

from callstream_runtime.loop_lag import observe_lag
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.model import ApprovalStatus, QuestionStatus
from dialog_engine.observe.metrics import Metrics
from plugins_contract.catalog import ToolEntry


class Facts:
    """Each method is called by one part, which receives it as a callback."""

    def __init__(self, metrics: Metrics, subjects: SubjectUse) -> None:
        self._metrics = metrics
        self._subjects = subjects

    def tool_refused(self, tool: ToolEntry, model: str) -> None:
        """The provider of `model` refuses this tool."""
        self._metrics.tools_refused.labels(self._metrics.tools["", tool.name], model).inc()

    def approval_decided(self, decision: ApprovalStatus) -> None:
        """A decision on a tool call was committed at this engine."""
        self._metrics.approvals.labels(decision).inc()

    def question_changed(self, status: QuestionStatus) -> None:
        """A question of a server, or its end, was committed at this engine."""
        self._metrics.questions.labels(status).inc()

    def retention_passed(self, erased: int, left: int) -> None:
        """A pass of the retention has erased and left so many sessions."""
        self._metrics.retention_erased.inc(erased)
        self._metrics.retention_left.set(left)

    def client_dropped(self) -> None:
        """A client was disconnected because it did not read."""
        self._metrics.clients_dropped.inc()

    def request_refused(self, code: str, subject: str) -> None:
        """A request of the subject was answered with the problem document of this code."""
        self._metrics.requests_refused.labels(code).inc()
        self._subjects.count("refusals", subject)

    async def observe_loop(self) -> None:
        """Observe how late the event loop is, until cancelled."""
        await observe_lag(self._metrics.loop_lag)
