"""The times of an engine's parts. No setting changes them; a test of whole engines does."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dialog_engine.calls.mailbox import MailboxTimes
from dialog_engine.chat.leaving import LeavingTimes
from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.chat.times import TurnTimes
from dialog_engine.event_log.turn_log import LogTimes
from dialog_engine.http.streams import StreamTimes
from dialog_engine.personal_data.service import ErasureTimes
from dialog_engine.relay.publish_queue import RelayTimes
from dialog_engine.tool_calls.questions.pending import GONE_SECONDS


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """The times of each part."""

    erasures: ErasureTimes = ErasureTimes()
    gone: float = GONE_SECONDS
    """How long a tool is missing before the questions of its server are withdrawn."""
    leaving: LeavingTimes = LeavingTimes()
    logs: LogTimes = LogTimes()
    mailbox: MailboxTimes = MailboxTimes()
    ownership: OwnershipTimes = OwnershipTimes()
    provider_now: Callable[[], float] = time.monotonic
    """The clock by which the answers of the identity provider get old, in seconds."""
    relay: RelayTimes = RelayTimes()
    streams: StreamTimes = StreamTimes()
    turns: TurnTimes = TurnTimes()
