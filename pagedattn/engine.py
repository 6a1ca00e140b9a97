"""The engine: text in, text out, for many requests at once over one paged KV cache."""

from __future__ import annotations

import logging
import operator
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from . import __version__
from .answers import RequestAnswers
from .block_manager import BlockManager
from .cache_budget import choose_num_blocks
from .config import KV_CACHE_DTYPES, EngineConfig
from .detokenizer import Tokenizer
from .integrations.transformers import enable, probe_kv_shape
from .kv_cache import KVCache
from .loading import load
from .metrics import Metrics
from .model_runner import ModelRunner
from .outputs import RequestOutput
from .request import FinishReason, Request, prompt_hash
from .sampling import SampledToken, SamplingParams, sample
from .scheduler import Scheduler, Step
from .sizing import KVShape
from .swap_space import SwapSpace

logger = logging.getLogger("pagedattn")

# Part of the blocks that stay free when a request is admitted, so that those running can grow.
_WATERMARK = 0.01


class Engine:
    """Serves a Hugging Face decoder with continuous batching over a paged KV cache.

    model: a transformers model that uses the attention interface, in eval mode, on its device. It
    is switched to paged attention and serves this engine alone from then on.
    tokenizer: its tokenizer; without one, prompts are token ids and answers have no text.
    The other arguments are described in :class:`pagedattn.config.EngineConfig`.

    Raises ValueError for a model that pagedattn cannot serve and for wrong options, naming them.
    Not thread-safe.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None = None,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_cache_bytes: int | None = None,
        gpu_memory_utilization: float = 0.9,
        kv_cache_dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        preemption: str = "auto",
        swap_space_bytes: int = 0,
        speculative: Mapping[str, Any] | None = None,
        compile: bool = False,
    ) -> None:
        config = EngineConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_bytes=kv_cache_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            enable_chunked_prefill=enable_chunked_prefill,
            preemption=preemption,
            swap_space_bytes=swap_space_bytes,
            speculative=speculative,
            compile=compile,
        )
        wanted_len = _wanted_len(config, model)
        if not config.enable_chunked_prefill:
            max_num_batched_tokens = max(max_num_batched_tokens, wanted_len)
        enable(model)
        cache_dtype = KV_CACHE_DTYPES[config.kv_cache_dtype] or model.dtype
        shape = KVShape(*probe_kv_shape(model), cache_dtype)
        num_blocks = choose_num_blocks(config, model, shape, wanted_len, max_num_batched_tokens)
        capacity = num_blocks * config.block_size
        if config.max_model_len is not None and config.max_model_len > capacity:
            raise ValueError(
                f"max_model_len={config.max_model_len} tokens do not fit into the KV cache of "
                f"{num_blocks} blocks of {config.block_size} tokens"
            )
        self.config = config
        self.max_model_len = min(wanted_len, capacity)
        self.tokenizer = tokenizer
        self.kv_cache = KVCache(
            shape.num_layers,
            num_blocks,
            config.block_size,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=shape.dtype,
            device=model.device,
        )
        swap_space = SwapSpace(self.kv_cache, config.swap_space_bytes) if config.swaps else None
        self.block_manager = BlockManager(
            num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_host_blocks=0 if swap_space is None else swap_space.num_blocks,
            watermark=_WATERMARK,
        )
        self.scheduler = Scheduler(
            self.block_manager,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            enable_chunked_prefill=config.enable_chunked_prefill,
            swap_space=swap_space,
        )
        self.metrics = Metrics(self.scheduler, config.block_size, self.max_model_len)
        self._runner = ModelRunner(model, self.kv_cache, self.block_manager)
        self._model_name = model.config.name_or_path or type(model).__name__
        self._vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
        self._eos_token_ids = _eos_token_ids(model, tokenizer)
        self._answers: dict[str, RequestAnswers] = {}  # unfinished
        self._news: dict[str, RequestAnswers] = {}  # changed since someone last looked
        # Tokens that their requests have, but the answers' texts have not.
        self._unread: deque[tuple[RequestAnswers, Request, SampledToken]] = deque()
        self._num_generated = 0  # names requests that come without an id

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str,
        *,
        dtype: torch.dtype | str = "auto",
        device: str | torch.device | None = None,
        **options: Any,
    ) -> Engine:
        """An engine for a model that :func:`pagedattn.loading.load` finds and loads.

        options: the engine's own keyword arguments.
        """
        model, tokenizer = load(path_or_name, dtype=dtype, device=device)
        return cls(model, tokenizer, **options)

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers all prompts; the results come in the order of the prompts.

        prompts: one string, or a list of strings or of lists of token ids.
        sampling_params: for all prompts, or a list with one for each.

        Raises ValueError for a prompt that is empty or too long and for wrong parameters, TypeError
        for one that is neither text nor token ids.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        if isinstance(sampling_params, SamplingParams) or sampling_params is None:
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(f"{len(sampling_params)} sampling_params for {len(prompts)} prompts")
        request_ids: list[str] = []
        try:
            for prompt, params in zip(prompts, sampling_params, strict=True):
                request_id = self._new_request_id()
                self.add_request(request_id, prompt, params)
                request_ids.append(request_id)
            while any(request_id in self._answers for request_id in request_ids):
                self._advance()
            return [self._news.pop(request_id).output() for request_id in request_ids]
        except BaseException:
            for request_id in request_ids:
                self._discard(request_id)
            raise

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> RequestStream:
        """Answers one prompt; the iterator gives the answer so far whenever it has grown.

        Closing or dropping the iterator aborts the request. Other requests advance with it.
        """
        request_id = self._new_request_id()
        self.add_request(request_id, prompt, sampling_params)
        return RequestStream(self, request_id)

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Queues a request; :meth:`step` works on it.

        priority: lower values go first. cache_salt: only requests of equal salt share prefixes.
        tenant: appears in log lines and errors.

        Raises ValueError if the id is in use, or the prompt is empty, too long for max_model_len or
        holds unknown tokens, or the parameters ask for what is not there; TypeError if the prompt
        is neither text nor token ids.
        """
        params = sampling_params or SamplingParams()
        if request_id in self._answers:
            raise ValueError(f"request_id {request_id!r} is in use")
        token_ids = self._tokenize(prompt)
        seed = random.getrandbits(63) if params.seed is None else params.seed
        request = Request(request_id, token_ids, params, seed, priority, cache_salt)
        answers = RequestAnswers(request, self.tokenizer, tenant)
        try:
            self._check(token_ids, params)
            self.scheduler.add(request)
        except ValueError as error:
            raise ValueError(f"{error} ({self._describe(answers)})") from None
        self._answers[request_id] = answers

    def step(self) -> list[RequestOutput]:
        """Computes one step for the requests at hand; returns what changed, finished ones included.

        If the model fails, the step's requests are queued again and its error is raised, with a
        note that names them (Python 3.11 and later).
        """
        self._advance()
        outputs = [answers.output() for answers in self._news.values()]
        self._news.clear()
        return outputs

    def abort(self, request_id: str) -> None:
        """Ends a request. Its blocks are free at once; unknown or finished ids are ignored."""
        answers = self._answers.get(request_id)
        if answers is not None:
            for request in answers.requests:
                self._finish(answers, request, "abort")

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._answers)

    def _advance(self) -> None:
        self._read_tokens()  # those that an exception left over
        start = time.perf_counter()
        step = self.scheduler.schedule()
        if not step.num_tokens:
            if self.scheduler.has_unfinished:
                raise RuntimeError(
                    f"no request can go on: {len(self.scheduler.running)} running, "
                    f"{len(self.scheduler.waiting)} waiting; abort them"
                )
            return
        try:
            sampled = self._compute(step)
            self.scheduler.complete(step)
            self.metrics.observe_step(time.perf_counter() - start)
            # All requests get their tokens before the tokenizer or a log handler can raise.
            for request, tokens in sampled.items():
                self._append_tokens(request, tokens)
        except BaseException as error:
            self.scheduler.fail(step)
            self._report_failure(step, error)
            raise
        self._read_tokens()

    def _compute(self, step: Step) -> dict[Request, list[SampledToken]]:
        """The model's next tokens: one for each sample of the requests that get one."""
        logits = self._runner.run(step)
        rows = {r: r.sampling_rows() for r in step.requests if step.samples(r)}
        repeats = torch.tensor([len(r) for r in rows.values()], dtype=torch.long)
        logits = logits.repeat_interleave(repeats.to(logits.device), dim=0)
        tokens = iter(sample(logits, [row for group in rows.values() for row in group]))
        return {request: [next(tokens) for _ in group] for request, group in rows.items()}

    def _append_tokens(self, request: Request, tokens: list[SampledToken]) -> None:
        """Gives a request its next token; one for each sample if it is still to be forked."""
        answers = self._answers[request.request_id]
        samples = self.scheduler.fork(request)
        answers.add_samples(samples[1:])
        for sample_request, token in zip(samples, tokens, strict=True):
            sample_request.token_ids.append(token.token_id)
            self._unread.append((answers, sample_request, token))
        self._news[request.request_id] = answers

    def _read_tokens(self) -> None:
        """Adds tokens to the answers' texts and ends the answers that are complete."""
        while self._unread:
            answers, request, token = self._unread.popleft()
            if request.finish_reason is None:  # not aborted in the meantime
                self._read(answers, request, token)

    def _read(self, answers: RequestAnswers, request: Request, token: SampledToken) -> None:
        self.metrics.observe_token(request)
        reason = self._end(request, token)
        try:
            if answers.add_token(request, token, visible=reason != "stop"):
                reason = "stop"
        finally:
            if reason is not None:
                self._finish(answers, request, reason)

    def _end(self, request: Request, token: SampledToken) -> FinishReason | None:
        """Why the answer ends with ``token``, its text aside; None if it goes on."""
        params = request.params
        if token.token_id in (params.stop_token_ids or ()):
            return "stop"
        if token.token_id in self._eos_token_ids and not params.ignore_eos:
            return "stop"
        full = len(request.token_ids) >= self.max_model_len
        return "length" if full or request.num_output_tokens >= params.max_tokens else None

    def _finish(self, answers: RequestAnswers, request: Request, reason: FinishReason) -> None:
        if request.finish_reason is not None:
            return
        self.scheduler.finish(request, reason)
        self.metrics.observe_finish(request)
        answers.finish(request)
        self._news[request.request_id] = answers
        if answers.finished:
            del self._answers[request.request_id]
        logger.info(
            "finished: reason=%s tokens=%d %s",
            reason,
            request.num_output_tokens,
            self._describe(answers),
        )

    def _next_output(self, request_id: str) -> RequestOutput | None:
        """Advances until there is news of a request; None after its last."""
        while request_id in self._answers and request_id not in self._news:
            self._advance()
        answers = self._news.pop(request_id, None)
        return None if answers is None else answers.output()

    def _discard(self, request_id: str) -> None:
        self.abort(request_id)
        self._news.pop(request_id, None)

    def _report_failure(self, step: Step, error: BaseException) -> None:
        """Names the requests of a failed step in the log and in the error."""
        request_ids = dict.fromkeys(request.request_id for request in step.requests)
        requests = "; ".join(self._describe(self._answers[i]) for i in request_ids)
        if sys.version_info >= (3, 11):
            error.add_note(f"in a step of {requests}")
        logger.error("step failed: %s: %s", type(error).__name__, requests)

    def _tokenize(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            try:
                return [operator.index(token_id) for token_id in prompt]
            except TypeError:
                raise TypeError(
                    "a prompt must be a string or a list of token ids (integers), got "
                    f"{type(prompt).__name__}; a single prompt of token ids is [[1, 2, 3]]"
                ) from None
        if self.tokenizer is None:
            raise ValueError("a prompt of text needs a tokenizer; this engine has none")
        return list(self.tokenizer.encode(prompt))

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        if not token_ids:
            raise ValueError("the prompt has no tokens")
        if len(token_ids) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens; with one token of answer it must fit "
                f"into max_model_len={self.max_model_len}"
            )
        if not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise ValueError(f"token ids of the prompt must be in [0, {self._vocab_size})")
        if params.stop_strings and self.tokenizer is None:
            raise ValueError("stop strings need a tokenizer; this engine has none")

    def _new_request_id(self) -> str:
        while True:
            request_id = f"generate-{self._num_generated}"
            self._num_generated += 1
            if request_id not in self._answers:
                return request_id

    def _describe(self, answers: RequestAnswers) -> str:
        """Names a request without showing its prompt."""
        request = answers.requests[0]
        tenant = "" if answers.tenant is None else f" tenant={answers.tenant}"
        return (
            f"request={request.request_id} "
            f"prompt_sha256={prompt_hash(request.token_ids[: request.num_prompt_tokens])} "
            f"model={self._model_name} version={__version__} "
            f"latency={time.perf_counter() - request.arrival_time:.3f}s{tenant}"
        )


class RequestStream(Iterator[RequestOutput]):
    """The answer to one request while it grows; made by :meth:`Engine.stream`."""

    def __init__(self, engine: Engine, request_id: str) -> None:
        self._engine: Engine | None = engine  # None: closed
        self._request_id = request_id

    def __next__(self) -> RequestOutput:
        if self._engine is None:
            raise StopIteration
        try:
            output = self._engine._next_output(self._request_id)
        except BaseException:
            self.close()
            raise
        if output is None:
            self._engine = None
            raise StopIteration
        return output

    def close(self) -> None:
        """Aborts the request, whether or not its stream was begun."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine._discard(self._request_id)

    def __del__(self) -> None:
        self.close()


def _wanted_len(config: EngineConfig, model: PreTrainedModel) -> int:
    """Most tokens of a sequence, before the size of the cache is known."""
    text_config = model.config.get_text_config(decoder=True)
    model_len: int | None = getattr(text_config, "max_position_embeddings", None)
    if config.max_model_len is None:
        return model_len or 2048
    if model_len is not None and config.max_model_len > model_len:
        raise ValueError(
            f"max_model_len={config.max_model_len} is more than the {model_len} positions "
            f"(max_position_embeddings) that {type(model).__name__} is made for"
        )
    return config.max_model_len


def _eos_token_ids(model: PreTrainedModel, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that end an answer, as the model's own ``generate`` has them."""
    config = getattr(model, "generation_config", None)
    ids = getattr(config, "eos_token_id", None)
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
