"""vLLM's block manager, which is pure Python: one call per request, as its scheduler does."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ..block_manager import BATCH, BLOCK_SIZE, LARGE_POOL, STARTING_LENGTH, random_tokens
from ..measure import Contestant
from . import Peer, Unsupported


class VllmBlocks(Peer[str]):
    """`vllm.v1.core.kv_cache_manager.KVCacheManager` as of 0.32."""

    devices = ("cpu", "cuda")  # it runs on the host in either case

    def __init__(self) -> None:
        importlib.import_module("vllm.v1.core.kv_cache_manager")

    def contestants(self, problem: str) -> Sequence[Contestant]:
        makers = {
            "allocate a new prompt": allocate,
            "free a prompt": free,
            "decode step": decode_step,
        }
        if problem not in makers:
            raise Unsupported("not measured")
        return [makers[problem](Manager())]


class Manager:
    def __init__(self) -> None:
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hash_function = importlib.import_module("vllm.utils.hashing").sha256

        spec = interface.FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.float16
        )
        config = interface.KVCacheConfig(
            num_blocks=LARGE_POOL,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        )
        utils.init_none_hash(hash_function)
        self.hasher = utils.get_request_block_hasher(BLOCK_SIZE, hash_function)
        self.manager = manager.KVCacheManager(
            config,
            max_model_len=65_536,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )

    def request(self, name: str, tokens: list[int]) -> Any:
        request = SimpleNamespace(
            request_id=name,
            all_token_ids=tokens,
            num_tokens=len(tokens),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            num_preemptions=0,
            session_id=None,
            shared_prefix_boundary=None,
            mm_features=[],
            lora_request=None,
            cache_salt=None,
            prompt_embeds=None,
            skip_reading_prefix_cache=False,
            block_hashes=[],
            status=None,
        )
        request.block_hashes = self.hasher(request)
        return request

    def allocate(self, request: Any) -> None:
        blocks, num_cached = self.manager.get_computed_blocks(request)[:2]
        self.manager.allocate_slots(request, request.num_tokens - num_cached, num_cached, blocks)

    def grow(self, request: Any) -> None:
        """What the scheduler does between steps."""
        request.num_computed_tokens = request.num_tokens
        request.all_token_ids.append(7)
        request.num_tokens += 1
        request.block_hashes.extend(self.hasher(request))


def allocate(manager: Manager) -> Contestant:
    tokens, first = random_tokens().tolist(), itertools.count(50_000)
    requests: list[Any] = []

    def run(layer: int) -> None:
        requests.append(manager.request("r", tokens))
        manager.allocate(requests[-1])

    def after() -> None:
        manager.manager.free(requests.pop())
        tokens[0] = next(first)

    return Contestant("vLLM", run, after=after)


def free(manager: Manager) -> Contestant:
    requests: list[Any] = []

    def allocate_again() -> None:
        requests.append(manager.request("r", random_tokens().tolist()))
        manager.allocate(requests[-1])

    allocate_again()
    return Contestant(
        "vLLM", lambda layer: manager.manager.free(requests.pop()), after=allocate_again
    )


def decode_step(manager: Manager) -> Contestant:
    batch = []
    for i in range(BATCH):
        tokens = random_tokens(STARTING_LENGTH, seed=i).tolist()
        batch.append(manager.request(f"request-{i}", tokens))
        manager.allocate(batch[-1])

    def grow() -> None:
        for request in batch:
            manager.grow(request)

    def run(layer: int) -> None:
        for request in batch:
            manager.manager.allocate_slots(request, 1)

    grow()
    return Contestant("vLLM", run, after=grow, calls=BATCH)
