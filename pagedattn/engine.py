"""The engine: text in, text out, for many requests at once over one paged KV cache."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .answers import RequestAnswers
from .block_manager import BlockManager
from .cache_budget import choose_num_blocks
from .config import EngineConfig
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

logger = logging.getLogger("pagedattn")

# Part of the blocks that stay free when a request is admitted, so that those running can grow.
_WATERMARK = 0.01


class Engine:
    """Serves a Hugging Face decoder with continuous batching over a paged KV cache.

    model: a transformers model that uses the attention interface, in eval mode, on its device. It
    is switched to paged attention and serves this engine alone from then on.
    tokenizer: its tokenizer; without one, prompts are token ids and answers have no text.
    options: see :class:`pagedattn.config.EngineConfig`.

    Raises ValueError for a model that pagedattn cannot serve and for wrong options, naming them.
    Not thread-safe.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Tokenizer | None = None, **options: Any
    ) -> None:
        config = EngineConfig(**options)
        enable(model)
        shape = KVShape(*probe_kv_shape(model), model.dtype)
        model_len = getattr(
            model.config.get_text_config(decoder=True), "max_position_embeddings", None
        )
        wanted_len = config.max_model_len or model_len or 2048
        num_blocks = choose_num_blocks(config, model, shape, wanted_len)
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
        self.block_manager = BlockManager(
            num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            watermark=_WATERMARK,
        )
        max_num_batched_tokens = config.max_num_batched_tokens
        if not config.enable_chunked_prefill:
            max_num_batched_tokens = max(max_num_batched_tokens, self.max_model_len)
        self.scheduler = Scheduler(
            self.block_manager,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
        self.metrics = Metrics(self.scheduler, config.block_size, self.max_model_len)
        self._runner = ModelRunner(model, self.kv_cache, self.block_manager)
        self._model_name = model.config.name_or_path or type(model).__name__
        self._vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
        self._eos_token_ids = _eos_token_ids(model, tokenizer)
        self._answers: dict[str, RequestAnswers] = {}
        self._outputs: dict[str, RequestOutput] = {}  # news that no one has collected yet
        self._num_generated = 0  # names requests that come without an id

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str,
        *,
        dtype: torch.dtype | str = "auto",
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> Engine:
        """An engine for a model that :func:`pagedattn.loading.load` finds and loads."""
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

        Raises ValueError for a prompt that is empty or too long and for wrong parameters.
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
            return [self._outputs.pop(request_id) for request_id in request_ids]
        except BaseException:
            for request_id in request_ids:
                self._discard(request_id)
            raise

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answers one prompt; yields the answer so far whenever it has grown.

        Closing the iterator aborts the request. Other requests advance with it.
        """
        request_id = self._new_request_id()
        self.add_request(request_id, prompt, sampling_params)
        return self._stream(request_id)

    def _stream(self, request_id: str) -> Iterator[RequestOutput]:
        try:
            while request_id in self._answers or request_id in self._outputs:
                output = self._outputs.pop(request_id, None)
                if output is None:
                    self._advance()
                else:
                    yield output
        finally:
            self._discard(request_id)

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
        holds unknown tokens, or the parameters ask for what is not there.
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

        If the model fails, the step's requests are queued again and its error is raised.
        """
        self._advance()
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs

    def abort(self, request_id: str) -> None:
        """Ends a request. Its blocks are free at once; unknown or finished ids are ignored."""
        answers = self._answers.get(request_id)
        if answers is not None:
            for request in answers.requests:
                self._finish(answers, request, "abort")
            self._publish(answers)

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._answers)

    def _advance(self) -> None:
        start = time.perf_counter()
        step = self.scheduler.schedule()
        if not step.num_tokens:
            return
        try:
            sampled = self._compute(step)
        except BaseException:
            self.scheduler.fail(step)
            raise
        self.scheduler.complete(step)
        self.metrics.observe_step(time.perf_counter() - start)
        for request, tokens in sampled.items():
            answers = self._answers[request.request_id]
            samples = self.scheduler.fork(request)
            answers.add_samples(samples[1:])
            for forked, token in zip(samples, tokens, strict=True):
                self._append(answers, forked, token)
            self._publish(answers)

    def _compute(self, step: Step) -> dict[Request, list[SampledToken]]:
        """The model's next tokens: one for each sample of the requests that get one."""
        logits = self._runner.run(step)
        rows = {r: r.sampling_rows() for r in step.requests if step.samples(r)}
        repeats = torch.tensor([len(r) for r in rows.values()], dtype=torch.long)
        logits = logits.repeat_interleave(repeats.to(logits.device), dim=0)
        tokens = iter(sample(logits, [row for group in rows.values() for row in group]))
        return {request: [next(tokens) for _ in group] for request, group in rows.items()}

    def _append(self, answers: RequestAnswers, request: Request, token: SampledToken) -> None:
        self.metrics.observe_token(request)
        request.token_ids.append(token.token_id)
        params = request.params
        ends = token.token_id in (params.stop_token_ids or ()) or (
            token.token_id in self._eos_token_ids and not params.ignore_eos
        )
        ends |= answers.add_token(request, token, visible=not ends)
        full = len(request.token_ids) >= self.max_model_len
        if ends:
            self._finish(answers, request, "stop")
        elif full or request.num_output_tokens >= params.max_tokens:
            self._finish(answers, request, "length")

    def _finish(self, answers: RequestAnswers, request: Request, reason: FinishReason) -> None:
        if request.finish_reason is not None:
            return
        self.scheduler.finish(request, reason)
        self.metrics.observe_finish(request)
        answers.finish(request)
        logger.info(
            "finished: reason=%s tokens=%d %s",
            reason,
            request.num_output_tokens,
            self._describe(answers),
        )

    def _publish(self, answers: RequestAnswers) -> None:
        output = answers.output()
        self._outputs[output.request_id] = output
        if output.finished:
            del self._answers[output.request_id]

    def _discard(self, request_id: str) -> None:
        self.abort(request_id)
        self._outputs.pop(request_id, None)

    def _tokenize(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return [int(token_id) for token_id in prompt]
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
            f"model={self._model_name} version={_version()} "
            f"latency={time.perf_counter() - request.arrival_time:.3f}s{tenant}"
        )


def _version() -> str:
    from . import __version__

    return __version__


def _eos_token_ids(model: PreTrainedModel, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that end an answer, as the model's own ``generate`` has them."""
    config = getattr(model, "generation_config", None)
    ids = getattr(config, "eos_token_id", None)
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
