"""How the next token is chosen: parameters of a request, and the sampler over a batch.

The random number of a row depends on (seed, sample index, position) alone, by a counter-based
generator, and a row is processed by itself. So what a request samples does not depend on what
else is in the batch, on preemption or on chunking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


def _require(ok: bool, name: str, got: object, wanted: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {wanted}, got {got!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request; names and defaults are vLLM's.

    n: answers returned. best_of: answers generated, of which the ``n`` with the highest cumulative
    log probability are returned; ``None`` means ``n``.
    temperature: logits are divided by it; 0 is greedy.
    min_p: keep tokens at least min_p times as likely as the most likely one (Nguyen et al., 2024).
    top_k: keep the k most likely tokens; 0 (or -1) keeps all.
    top_p: keep the smallest set of most likely tokens whose probability, of what min_p and top_k
    left, reaches it (Holtzman et al., 2020). The order of the three is that of vLLM.
    repetition_penalty: logits of tokens seen in the prompt or the answer are divided by it where
    positive and multiplied where negative (Keskar et al., 2019).
    max_tokens: most tokens in the answer.
    stop: a string or strings that end the answer; they are not part of its text.
    stop_token_ids: tokens that end the answer; kept in ``token_ids``, absent from the text.
    ignore_eos: goes on past the model's end-of-sequence token.
    seed: of the random stream; None draws one per request.
    logprobs: also report the log probabilities of this many most likely tokens at each position,
    and of the chosen one, of the model's own distribution (before temperature and penalty).

    Raises ValueError, naming the parameter, for a value out of its range.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    stop_strings: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _require(_is_int(self.n) and self.n >= 1, "n", self.n, "an integer >= 1")
        _require(
            self.best_of is None or (_is_int(self.best_of) and self.best_of >= self.n),
            "best_of",
            self.best_of,
            f"None or an integer >= n ({self.n})",
        )
        _require(
            0.0 <= self.temperature < math.inf, "temperature", self.temperature, "finite and >= 0"
        )
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(_is_int(self.top_k) and self.top_k >= -1, "top_k", self.top_k, "an integer >= -1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]")
        _require(
            0.0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            self.repetition_penalty,
            "finite and > 0",
        )
        _require(
            _is_int(self.max_tokens) and self.max_tokens >= 1,
            "max_tokens",
            self.max_tokens,
            "an integer >= 1",
        )
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        _require(
            all(isinstance(s, str) and s for s in strings), "stop", self.stop, "non-empty strings"
        )
        _require(
            all(_is_int(token) for token in self.stop_token_ids or ()),
            "stop_token_ids",
            self.stop_token_ids,
            "a list of integers",
        )
        _require(self.seed is None or _is_int(self.seed), "seed", self.seed, "None or an integer")
        _require(
            self.logprobs is None or (_is_int(self.logprobs) and self.logprobs >= 0),
            "logprobs",
            self.logprobs,
            "None or an integer >= 0",
        )
        object.__setattr__(self, "stop_strings", strings)

    @property
    def num_samples(self) -> int:
        """Answers to generate: best_of, or n."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, sample: int, position: int) -> float:
    """The uniform number in [0, 1) of one choice: a pure function of its arguments."""
    state = seed & _MASK
    for counter in (sample, position):
        state = _mix((state + _GOLDEN_GAMMA * (counter + 1)) & _MASK)
    return (state >> 11) * 2.0**-53


@dataclass(frozen=True)
class SamplingRow:
    """What the sampler needs to know about one row of logits."""

    params: SamplingParams
    token_ids: Sequence[int]  # prompt and answer so far
    seed: int
    sample: int = 0  # which of the request's samples


@dataclass(frozen=True)
class SampledToken:
    """A chosen token with its log probability under the model's own distribution."""

    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None  # with the chosen token; None where not asked for


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Chooses one token per row of ``logits`` ``[len(rows), vocab_size]`` (any float dtype)."""
    logits = logits.float()
    token_ids = _choose(logits, rows)
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0].tolist()
    tokens = token_ids.tolist()
    return [
        SampledToken(token, logprob, _top_logprobs(logprobs[i], row.params.logprobs, token))
        for i, (row, token, logprob) in enumerate(zip(rows, tokens, chosen, strict=True))
    ]


def _top_logprobs(logprobs: Tensor, count: int | None, chosen: int) -> dict[int, float] | None:
    if count is None:
        return None
    values, ids = logprobs.topk(min(count, logprobs.numel()))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    top.setdefault(chosen, logprobs[chosen].item())
    return top


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Token ids int64 ``[len(rows)]``."""
    if any(row.params.repetition_penalty != 1.0 for row in rows):
        logits = logits.clone()
        for row_logits, row in zip(logits, rows, strict=True):
            _penalise_repetition(row_logits, row)
    token_ids = logits.argmax(dim=-1)
    # Random rows one by one: a row's arithmetic is then the same in any batch.
    for i, row in enumerate(rows):
        if not row.params.is_greedy:
            token_ids[i] = _draw(logits[i], row)
    return token_ids


def _penalise_repetition(logits: Tensor, row: SamplingRow) -> None:
    penalty = row.params.repetition_penalty
    if penalty == 1.0:
        return
    seen = torch.tensor(sorted(set(row.token_ids)), device=logits.device)
    values = logits[seen]
    logits[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _draw(logits: Tensor, row: SamplingRow) -> Tensor:
    """One token id from ``logits`` ``[vocab_size]`` by inversion of the cumulative distribution."""
    params = row.params
    # The largest logit is subtracted first: dividing by a tiny temperature must not overflow.
    logits = (logits - logits.max()).double() / params.temperature
    order = None
    if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
        # In descending order every filter keeps a prefix.
        logits, order = logits.sort(descending=True, stable=True)
        # The first logit is 0, so exp gives probabilities relative to the most likely token's.
        logits = logits[: max(1, int((logits.exp() >= params.min_p).sum()))]
        if params.top_k > 0:
            logits = logits[: params.top_k]
    probs = torch.softmax(logits, dim=-1)
    cumulative = probs.cumsum(dim=-1)
    if params.top_p < 1.0:
        cumulative = cumulative[: max(1, int((cumulative - probs < params.top_p).sum()))]
    target = uniform(row.seed, row.sample, len(row.token_ids)) * cumulative[-1]
    # right=True skips tokens of probability zero.
    index = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.numel() - 1)
    return index if order is None else order[index]
