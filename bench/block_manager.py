"""`block_manager`: what its calls cost on pools of all sizes, its memory, and its peers.

The cost of a call must not grow with the pool: hence the ratios to the smallest pool.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import random
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagedattn.block_manager import BlockManager

from .measure import Contestant, measure
from .notes import note_left_out
from .options import Options
from .report import Group, progress_bar

BLOCK_SIZE = 16
PROMPT_LENGTH = 4096
BATCH = 256  # requests of a decode step
STARTING_LENGTH = 300  # tokens of each of them
MOST_BLOCKS = 64  # of each of them, and columns of their table
POOLS = {  # blocks
    "smoke": (1000, 2000),
    "quick": (1000, 10_000, 100_000, 1_000_000),
    "paper": (1000, 10_000, 100_000, 1_000_000),
}
LARGE_POOL = 40_000  # a batch grows in it for as long as it is timed
SOAK_OPERATIONS = 1_000_000


def groups(options: Options) -> Iterator[Group]:
    pools = POOLS[options.preset]
    if options.wants("allocate a new prompt"):
        ours = [new_prompts(size) for size in pools] + [new_prompts(pools[1], as_list=True)]
        yield bench("allocate a new prompt", ours, options)
    if options.wants("allocate a cached prompt"):
        ours = [cached_prompt(size) for size in pools]
        yield bench("allocate a cached prompt", ours, options)
    if options.wants("free a prompt"):
        yield bench("free a prompt", [free_prompt(size) for size in pools], options)
    if options.wants("decode step"):
        yield bench("decode step", decode_steps(), options)
    if options.wants("memory"):
        # In a process of its own, whose heap holds nothing yet.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            empty, full = pool.apply(bytes_per_block, (pools[-1],))
        facts = {"bytes per empty block": round(empty), "bytes per cached block": round(full)}
        yield Group("memory", [], facts=facts)
    if options.preset == "paper" and options.wants("soak"):
        report = soak(SOAK_OPERATIONS)
        resident = {f"{done:,} operations": f"{mib:.1f} MiB" for done, mib in report}
        yield Group("soak", [], facts=resident)


def bench(workload: str, ours: Sequence[Contestant], options: Options) -> Group:
    contestants = list(ours)
    for name, peer in options.peers.items():
        try:
            contestants += peer.contestants(workload)
        except Exception as reason:  # whatever it is, our results are not lost for it
            note_left_out(f"{workload}: {name}", reason)
    timings = measure(contestants, 1, options.seconds, progress=progress_bar(workload))
    facts = {"prompt_length": PROMPT_LENGTH, "batch": BATCH, "block_size": BLOCK_SIZE}
    return Group(workload, timings, facts=facts, columns=("/ first", "/ second"))


def random_tokens(length: int = PROMPT_LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50_000, length)


def new_prompts(num_blocks: int, as_list: bool = False) -> Contestant:
    """Each prompt starts with a token of its own, so that nothing of it is cached."""
    manager = BlockManager(num_blocks, BLOCK_SIZE)
    tokens, first = random_tokens(), itertools.count(50_000)
    prompt: list[Any] = []

    def make_prompt() -> None:
        """Just before the call, as a tokenizer does."""
        tokens[0] = next(first)
        prompt[:] = [tokens.tolist() if as_list else tokens.copy()]

    def free() -> None:
        manager.free("r")
        make_prompt()

    make_prompt()
    name = f"{num_blocks:,} blocks" + (", token list" if as_list else "")
    return Contestant(name, lambda layer: manager.allocate("r", prompt[0]), after=free)


def cached_prompt(num_blocks: int) -> Contestant:
    manager, tokens = BlockManager(num_blocks, BLOCK_SIZE), random_tokens()
    return Contestant(
        f"{num_blocks:,} blocks",
        lambda layer: manager.allocate("r", tokens),
        after=lambda: manager.free("r"),
    )


def free_prompt(num_blocks: int) -> Contestant:
    manager, tokens = BlockManager(num_blocks, BLOCK_SIZE), random_tokens()
    manager.allocate("r", tokens)
    return Contestant(
        f"{num_blocks:,} blocks",
        lambda layer: manager.free("r"),
        after=lambda: manager.allocate("r", tokens),
    )


def decode_steps() -> list[Contestant]:
    """A token more for each request of a batch, with what a model needs for it: per request."""
    names = [f"request-{i}" for i in range(BATCH)]
    tokens = random_tokens(BATCH)
    token_list = tokens.tolist()
    slots = np.empty(BATCH, np.int64)
    tables, lens = np.empty((BATCH, MOST_BLOCKS), np.int32), np.empty(BATCH, np.int32)

    def manager() -> BlockManager:
        made = BlockManager(LARGE_POOL, BLOCK_SIZE)
        for i, name in enumerate(names):
            made.allocate(name, random_tokens(STARTING_LENGTH, seed=i))
        return made

    def shorten(grown: BlockManager) -> None:
        if grown.num_tokens(names[0]) >= MOST_BLOCKS * BLOCK_SIZE:
            for name in names:
                grown.truncate(name, STARTING_LENGTH)

    everything, only_slots, from_list, one_by_one = (manager() for _ in range(4))
    return [
        Contestant(
            "slots, tables, lengths",
            lambda layer: everything.append_batch(
                names, tokens, slot_mapping=slots, block_tables=tables, seq_lens=lens
            ),
            after=lambda: shorten(everything),
            calls=BATCH,
        ),
        Contestant(
            "slots",
            lambda layer: only_slots.append_batch(names, tokens, slot_mapping=slots),
            calls=BATCH,
        ),
        Contestant(
            "slots, token list",
            lambda layer: from_list.append_batch(names, token_list, slot_mapping=slots),
            calls=BATCH,
        ),
        Contestant(
            "one append call each",
            lambda layer: [
                one_by_one.append(name, [token])
                for name, token in zip(names, token_list, strict=True)
            ],
            calls=BATCH,
        ),
    ]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


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
