"""What the engine returns."""

from __future__ import annotations

from dataclasses import dataclass

from .request import FinishReason


@dataclass(frozen=True)
class CompletionOutput:
    """One answer, or the part of it that is there so far.

    index: which of the request's answers. text: without special tokens and stop strings.
    token_ids: with the end-of-sequence or stop token, where one ended the answer.
    finish_reason: "stop" (end of sequence, stop string or stop token), "length" (max_tokens or
    max_model_len), "abort", or None while unfinished.
    cumulative_logprob: sum of the chosen tokens' log probabilities.
    logprobs: per token, token id -> log probability; None unless asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    cumulative_logprob: float
    logprobs: list[dict[int, float]] | None


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one request so far.

    num_cached_tokens: prompt tokens that were found in the prefix cache.
    """

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool
