"""One sequence being generated, and the states it goes through."""

from __future__ import annotations

import enum
import hashlib
import time
from dataclasses import dataclass, field
from typing import Literal

from .sampling import SamplingParams, SamplingRow

FinishReason = Literal["stop", "length", "abort"]


class RequestState(enum.Enum):
    """
    ::

        WAITING --admit--> RUNNING --finish (stop, length, abort)--> FINISHED
           ^ ^                | ^                                       ^
           | +----preempt-----+ |                                       |
           |                  | |                                       |
           |          swap_out| |swap_in                                |
           |                  v |                                       |
           +----preempt---- SWAPPED --------finish (abort)--------------+
           |                                                            |
           +------------------------finish (abort)----------------------+
    """

    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds the blocks of its computed tokens
    SWAPPED = "swapped"  # waits too; its blocks are on the host, shared ones maybe on the device
    FINISHED = "finished"  # holds no blocks


_TRANSITIONS = {
    (RequestState.WAITING, RequestState.RUNNING),
    (RequestState.RUNNING, RequestState.WAITING),
    (RequestState.RUNNING, RequestState.SWAPPED),
    (RequestState.RUNNING, RequestState.FINISHED),
    (RequestState.SWAPPED, RequestState.RUNNING),
    (RequestState.SWAPPED, RequestState.WAITING),
    (RequestState.SWAPPED, RequestState.FINISHED),
    (RequestState.WAITING, RequestState.FINISHED),
}


@dataclass(eq=False)
class Request:
    """One sequence: a prompt and the tokens generated after it.

    A request for several samples is one ``Request`` until its prompt is computed and is then
    forked into one per sample (:meth:`fork`).
    """

    request_id: str
    token_ids: list[int]  # prompt, then answer
    params: SamplingParams
    seed: int
    priority: int = 0
    cache_salt: str | None = None
    sample: int = 0
    num_prompt_tokens: int = field(init=False)
    num_unforked_samples: int = field(init=False)

    state: RequestState = RequestState.WAITING
    finish_reason: FinishReason | None = None
    num_computed_tokens: int = 0  # whose K and V are in the cache
    num_cached_tokens: int | None = None  # found in the prefix cache when first admitted
    num_preemptions: int = 0
    arrival: int = 0  # order of arrival, given by the scheduler
    arrival_time: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        self.num_unforked_samples = self.params.num_samples

    @property
    def sequence_id(self) -> str:
        """The block manager's name for this sequence; unique per request and sample."""
        return f"{self.request_id}/{self.sample}"

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def next_token_ids(self, count: int) -> list[int]:
        """The first ``count`` of the uncomputed tokens."""
        return self.token_ids[self.num_computed_tokens : self.num_computed_tokens + count]

    @property
    def is_decoding(self) -> bool:
        """Only the newest token is still to be computed."""
        return self.num_uncomputed_tokens == 1

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Sorts requests: lower priority values first, then first come first served."""
        return self.priority, self.arrival, self.sample

    def sampling_rows(self) -> list[SamplingRow]:
        """One row per sample that the next token is to be drawn for."""
        samples = range(self.sample, self.sample + self.num_unforked_samples)
        return [SamplingRow(self.params, self.token_ids, self.seed, i) for i in samples]

    def admit(self, num_cached_tokens: int) -> None:
        """WAITING -> RUNNING: blocks are allocated, ``num_cached_tokens`` need no computing."""
        self._move(RequestState.RUNNING)
        self.num_computed_tokens = num_cached_tokens
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens

    def preempt(self) -> None:
        """RUNNING or SWAPPED -> WAITING: blocks are given up; all tokens are computed again."""
        self._move(RequestState.WAITING)
        self.num_computed_tokens = 0
        self.num_preemptions += 1

    def swap_out(self) -> None:
        """RUNNING -> SWAPPED: blocks are moved to the host."""
        self._move(RequestState.SWAPPED)
        self.num_preemptions += 1

    def swap_in(self) -> None:
        """SWAPPED -> RUNNING: blocks are back on the device."""
        self._move(RequestState.RUNNING)

    def finish(self, reason: FinishReason) -> None:
        """WAITING, RUNNING or SWAPPED -> FINISHED: blocks are given up."""
        self._move(RequestState.FINISHED)
        self.finish_reason = reason

    def fork(self, sample: int) -> Request:
        """A copy that shares the computed prompt, in the same state."""
        child = Request(
            self.request_id,
            list(self.token_ids),
            self.params,
            self.seed,
            self.priority,
            self.cache_salt,
            sample,
        )
        child.num_prompt_tokens = self.num_prompt_tokens
        child.num_unforked_samples = 1
        child.state = self.state
        child.num_computed_tokens = self.num_computed_tokens
        child.num_cached_tokens = self.num_cached_tokens
        child.arrival = self.arrival
        child.arrival_time = self.arrival_time
        return child

    def _move(self, state: RequestState) -> None:
        if (self.state, state) not in _TRANSITIONS:
            raise RuntimeError(
                f"request {self.request_id!r} cannot go from {self.state.value} to {state.value}"
            )
        self.state = state


def prompt_hash(token_ids: list[int]) -> str:
    """Names a prompt in logs and errors without showing it: 16 hex digits of its SHA-256."""
    return hashlib.sha256(repr(token_ids).encode()).hexdigest()[:16]
