"""How much one message, one reply and one subject may be."""

from pydantic import Field

from callstream_runtime.settings_sources import Subject


class LimitSettings(Subject):
    """Limits of texts, of what waits, and of what one subject may use."""

    max_message_chars: int = Field(100_000, ge=1, description="Largest number of characters of a user's message.")
    max_reply_bytes: int = Field(4_000_000, ge=1000, description="Bytes of one reply of the model that are kept.")
    subject_max_turns: int = Field(50, ge=0, description="Running turns of one subject of API_KEYS; 0: no limit.")
    subject_max_streams: int = Field(200, ge=0, description="Open event streams of one subject; 0: no limit.")
    subject_requests_per_minute: int = Field(1200, ge=0, description="Requests of one subject; 0: no limit.")
    subject_tokens_per_day: int = Field(
        0, ge=0, description="Tokens of the models that one subject may use in a day (UTC); 0: no limit."
    )
    max_backlog: int = Field(
        10_000, ge=0, description="Number of waiting tool calls above which new ones are refused; 0: never."
    )
    subject_window: int = Field(
        100,
        ge=0,
        description="Largest number of waiting calls of one subject in the stream. More are held back, so that other"
        " subjects do not wait behind them. 0: any number.",
    )
