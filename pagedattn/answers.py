"""The answers to one request while they grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from .detokenizer import AnswerText, Tokenizer
from .outputs import CompletionOutput, RequestOutput
from .request import Request
from .sampling import SampledToken


@dataclass
class _Answer:
    text: AnswerText | None
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, float]] = field(default_factory=list)


class RequestAnswers:
    """Collects the samples of a request, their text and log probabilities."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None, tenant: str | None) -> None:
        self.tenant = tenant
        self.requests: list[Request] = []  # one per sample
        self._tokenizer = tokenizer
        self._answers: list[_Answer] = []
        self.add_samples([request])

    def add_samples(self, requests: list[Request]) -> None:
        for request in requests:
            text = None
            if self._tokenizer is not None:
                text = AnswerText(self._tokenizer, request.params.stop_strings)
            self.requests.append(request)
            self._answers.append(_Answer(text))

    def add_token(self, request: Request, token: SampledToken, *, visible: bool) -> bool:
        """Adds a token to a sample; True if it completes a stop string.

        visible: whether the token shows in the text; one that ends the answer does not.
        """
        answer = self._answers[request.sample]
        answer.cumulative_logprob += token.logprob
        if token.top_logprobs is not None:
            answer.logprobs.append(token.top_logprobs)
        return visible and answer.text is not None and answer.text.add(token.token_id)

    def finish(self, request: Request) -> None:
        """No token follows in this sample."""
        text = self._answers[request.sample].text
        if text is not None:
            text.finish()

    @property
    def finished(self) -> bool:
        """Every sample has ended."""
        return all(request.finish_reason is not None for request in self.requests)

    def output(self) -> RequestOutput:
        """The request's answers so far; with best_of the best ``n`` of them, best first."""
        first = self.requests[0]
        samples = list(zip(self.requests, self._answers, strict=True))
        if first.params.n < first.params.num_samples:
            samples.sort(key=lambda pair: -pair[1].cumulative_logprob)
        return RequestOutput(
            request_id=first.request_id,
            prompt_token_ids=first.token_ids[: first.num_prompt_tokens],
            outputs=[
                CompletionOutput(
                    index=index,
                    text=answer.text.text if answer.text is not None else "",
                    token_ids=request.output_token_ids,
                    finish_reason=request.finish_reason,
                    cumulative_logprob=answer.cumulative_logprob,
                    logprobs=list(answer.logprobs) if first.params.logprobs is not None else None,
                )
                for index, (request, answer) in enumerate(samples[: first.params.n])
            ],
            num_cached_tokens=first.num_cached_tokens or 0,
            finished=self.finished,
        )
