"""Text of an answer while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the engine uses."""

    eos_token_id: int | None

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


class AnswerText:
    """Detokenises incrementally and watches for stop strings.

    ``text`` only grows, and holds whole characters: tokens that end within a UTF-8 sequence wait
    for the rest (an answer cut there leaves it out). Text that may turn out to be the beginning
    of a stop string is held back too; the stop string itself never shows.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        self._token_ids: list[int] = []
        # Tokens before _begin are decoded for good. Those up to _end are decoded too, but are
        # decoded again with the next ones: what a token's text is may depend on the one before.
        self._begin = 0
        self._end = 0
        self._decoded = ""
        self.text = ""

    def add(self, token_id: int) -> bool:
        """Adds a token; True if the text now holds a stop string, and ends before the first."""
        self._token_ids.append(token_id)
        context = self._decode(self._token_ids[self._begin : self._end])
        fresh = self._decode(self._token_ids[self._begin :])
        if fresh.endswith(_REPLACEMENT) or len(fresh) <= len(context):
            return False
        searched = len(self._decoded)
        self._decoded += fresh[len(context) :]
        self._begin, self._end = self._end, len(self._token_ids)
        found = (
            self._decoded.find(stop, max(0, searched - len(stop) + 1))
            for stop in self._stop_strings
        )
        positions = [position for position in found if position >= 0]
        if positions:
            self._decoded = self.text = self._decoded[: min(positions)]
            return True
        self.text = self._decoded[: len(self._decoded) - self._num_held_back()]
        return False

    def finish(self) -> None:
        """No token follows: shows what was held back for a stop string."""
        self.text = self._decoded

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _num_held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop_strings), default=0)
        for length in range(min(longest, len(self._decoded)), 0, -1):
            tail = self._decoded[-length:]
            if any(stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
