"""The times of an engine's parts. No setting changes them; a test of whole engines does."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dialog_engine.calls.mailbox import MailboxTimes
from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.chat.turns import TurnTimes
from dialog_engine.event_log.turn_log import LogTimes
from dialog_engine.http.streams import StreamTimes
from dialog_engine.personal_data.service import ErasureTimes
from dialog_engine.relay.publish_queue import RelayTimes

if TYPE_CHECKING:
    from dialog_engine.identity.provider import ProviderTimes


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """The times of each part."""

    erasures: ErasureTimes = ErasureTimes()
    logs: LogTimes = LogTimes()
    mailbox: MailboxTimes = MailboxTimes()
    ownership: OwnershipTimes = OwnershipTimes()
    provider: "ProviderTimes | None" = None
    """None: its own, whose module takes 9 MB and is imported only where it is needed."""
    relay: RelayTimes = RelayTimes()
    streams: StreamTimes = StreamTimes()
    turns: TurnTimes = TurnTimes()
