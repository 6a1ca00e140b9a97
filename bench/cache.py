"""`cache`: moving tokens and blocks beside memcpy of the same bytes, and what a call costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .measure import Contestant, WrongResult, check, measure
from .notes import note_left_out
from .options import Options
from .paging import block_tables, fill, slots_of
from .problem import TOLERANCE, build, layers_to_leave_caches
from .report import Group, Place, progress_bar
from .shapes import DTYPES, AttentionShape
from .timers import timer_for

NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16
NUM_TOKENS = {"smoke": (16, 1024), "quick": (16, 4096), "paper": (16, 256, 4096, 32768)}
LARGE = 1024  # tokens; fewer are in the CPU's caches anyway, as a decode step's are
CALLS = 200  # of a small op in one timed run
GRAPH_CALLS = 20  # of an op in one compiled graph

_ops = torch.ops.pagedattn
Move = Callable[[int], object]


class Memory:
    """Rows of `num_tokens` tokens, once in a row and once in blocks, in each of `num_layers`.

        rows    [2, num_tokens, num_kv_heads, head_dim]
        layers  (key_cache, value_cache) [2 * num_blocks, block_size, num_kv_heads, head_dim]

    The table has the first num_blocks blocks; the others are for copies.
    """

    def __init__(self, num_tokens: int, dtype: str, layout: str, device: str) -> None:
        torch.manual_seed(0)
        num_layers = 4
        if num_tokens >= LARGE:
            bytes_per_token = 2 * NUM_KV_HEADS * HEAD_DIM * DTYPES[dtype].itemsize
            num_layers = layers_to_leave_caches(num_tokens * bytes_per_token)
        self.num_tokens, self.num_layers = num_tokens, num_layers
        tables = block_tables([num_tokens], BLOCK_SIZE)
        num_blocks = tables.numel()
        rows = torch.randn(2, num_tokens, NUM_KV_HEADS, HEAD_DIM).to(device, DTYPES[dtype])
        self.rows = list(rows.repeat(num_layers, 1, 1, 1, 1))
        self.keys_and_values = [layer.unbind() for layer in self.rows]
        self.tables = tables.to(device)
        self.slots = slots_of(self.tables, [num_tokens], BLOCK_SIZE)
        self.cu_seq_lens = torch.tensor([0, num_tokens], dtype=torch.int32, device=device)
        copies = torch.stack([tables[0], num_blocks + torch.randperm(num_blocks)], 1)
        self.copies = copies.long().to(device)
        self.copied_slots = slots_of(copies[:, 1].int()[None], [num_tokens], BLOCK_SIZE).to(device)
        inner = (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        if layout == "HND":
            inner = (NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        storage = torch.zeros(
            (num_layers, 2, 2 * num_blocks, *inner), dtype=DTYPES[dtype], device=device
        )
        if layout == "HND":
            storage = storage.transpose(-3, -2)
        self.layers = [(layer[0], layer[1]) for layer in storage]

    def next(self, layer: int) -> int:
        return (layer + 1) % self.num_layers

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """[2, num_tokens, num_kv_heads, head_dim] from those slots."""
        return read(self.layers[layer], slots)

    def write_all(self) -> None:
        for (key_cache, value_cache), (key, value) in zip(
            self.layers, self.keys_and_values, strict=True
        ):
            fill(key_cache, self.slots, key)
            fill(value_cache, self.slots, value)


def read(caches: tuple[Tensor, Tensor], slots: Tensor) -> Tensor:
    block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    return torch.stack([cache[block, offset] for cache in caches])


def pinned_like(tensor: Tensor) -> Tensor:
    """Memory of the host's that a GPU can copy into on its own."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True
    ).zero_()


@dataclass(frozen=True)
class Operation:
    """One op, what it cannot be faster than, and torch's indexing doing the same.

    `moved` reads, after a call for layer 0, what must then be equal to the rows.
    """

    name: str
    limit: Contestant
    ours: Move
    indexing: Move
    moved: Callable[[], Tensor]
    capturable: bool = True


def memcpy(memory: Memory) -> Contestant:
    rows = memory.rows
    return Contestant("memcpy", lambda layer: rows[memory.next(layer)].copy_(rows[layer]))


def reshape_and_cache(memory: Memory) -> Operation:
    def ours(layer: int) -> None:
        _ops.reshape_and_cache(*memory.keys_and_values[layer], *memory.layers[layer], memory.slots)

    def indexing(layer: int) -> None:
        for cache, rows in zip(memory.layers[layer], memory.keys_and_values[layer], strict=True):
            fill(cache, memory.slots, rows)

    return Operation(
        "reshape_and_cache",
        memcpy(memory),
        ours,
        indexing,
        moved=lambda: memory.read(0, memory.slots),
    )


def gather_cache(memory: Memory) -> Operation:
    memory.write_all()
    result: dict[str, tuple[Tensor, Tensor]] = {}

    def ours(layer: int) -> None:
        result["rows"] = _ops.gather_cache(
            *memory.layers[layer], memory.tables, memory.cu_seq_lens, memory.num_tokens
        )

    return Operation(
        "gather_cache",
        Contestant("memcpy to new memory", lambda layer: memory.rows[layer].clone()),
        ours,
        indexing=lambda layer: memory.read(layer, memory.slots),
        moved=lambda: torch.stack(result["rows"]),
    )


def copy_blocks(memory: Memory) -> Operation:
    memory.write_all()
    source, target = memory.copies.unbind(1)

    def ours(layer: int) -> None:
        key_cache, value_cache = memory.layers[layer]
        _ops.copy_blocks([key_cache], [value_cache], memory.copies)

    def indexing(layer: int) -> None:
        for cache in memory.layers[layer]:
            cache[target] = cache[source]

    return Operation(
        "copy_blocks", memcpy(memory), ours, indexing, lambda: memory.read(0, memory.copied_slots)
    )


def swap_blocks(memory: Memory) -> Operation:
    """To pinned memory of the host's, on a CPU to the next layer's; the mapping is on the CPU."""
    memory.write_all()
    copies = memory.copies.cpu()
    source = memory.copies[:, 0]
    limit = memcpy(memory)
    if source.is_cuda:
        key_cache, value_cache = map(pinned_like, memory.layers[0])
        targets = [(key_cache, value_cache)] * memory.num_layers
        host_rows = pinned_like(memory.rows[0])
        limit = Contestant(
            "memcpy to the host",
            lambda layer: host_rows.copy_(memory.rows[layer], non_blocking=True),
        )
    else:
        targets = [memory.layers[memory.next(layer)] for layer in range(memory.num_layers)]
    target = copies[:, 1]

    def ours(layer: int) -> None:
        _ops.swap_blocks(memory.layers[layer], targets[layer], copies)

    def indexing(layer: int) -> None:
        for cache, other in zip(memory.layers[layer], targets[layer], strict=True):
            other[target] = cache[source].to(other.device)

    def moved() -> Tensor:
        if source.is_cuda:
            torch.cuda.synchronize()
        slots = memory.copied_slots.to(targets[0][0].device)
        return read(targets[0], slots).to(source.device)

    return Operation("swap_blocks", limit, ours, indexing, moved, capturable=False)


OPERATIONS = (reshape_and_cache, gather_cache, copy_blocks, swap_blocks)


def groups(options: Options) -> Iterator[Group]:
    for dtype, layout in itertools.product(("fp32", "bf16"), ("HND", "NHD")):
        for num_tokens, make in itertools.product(NUM_TOKENS[options.preset], OPERATIONS):
            title = f"{make.__name__} {num_tokens} tokens {dtype} {layout}"
            if options.wants(title):
                memory = Memory(num_tokens, dtype, layout, options.device)
                place = Place(f"cache-{dtype}", f"{make.__name__} {layout}", num_tokens)
                yield bench_operation(make(memory), memory, title, place, options)
    if options.wants("call overhead"):
        yield bench_calls(options)


def bench_operation(
    operation: Operation, memory: Memory, title: str, place: Place, options: Options
) -> Group:
    """Raises WrongResult unless the op moved every row as it is."""
    operation.ours(0)
    if not torch.equal(operation.moved(), memory.rows[0]):
        raise WrongResult(f"{operation.name} did not move the rows as they are ({title})")
    contestants = [
        operation.limit,
        Contestant("pagedattn", operation.ours),
        Contestant("torch indexing", operation.indexing),
    ]
    if memory.num_tokens < LARGE:
        contestants = [repeated(contestant) for contestant in contestants]
    timer = timer_for(options.device, capturable=operation.capturable)
    timings = measure(contestants, memory.num_layers, options.seconds, timer, progress_bar(title))
    return Group(title, timings, place, moved_bytes=2 * memory.rows[0].nbytes)


def repeated(contestant: Contestant) -> Contestant:
    """For what is too short for a stop watch."""
    run = contestant.run

    def runs(layer: int) -> None:
        for _ in range(CALLS):
            run(layer)

    return replace(contestant, run=runs, calls=CALLS)


def bench_calls(options: Options) -> Group:
    """What calling an op costs: attention over one token with one tiny head."""
    shape = AttentionShape((1,), dtype="fp32", num_q_heads=1, num_kv_heads=1, head_dim=32)
    problem = build(shape, 1, options.device)
    arguments = (*problem.layer(0), problem.block_tables, problem.seq_lens, 1, 1.0)

    def call(query: Tensor) -> Tensor:
        out: Tensor = _ops.paged_attention(query, *arguments)
        return out

    def chain(query: Tensor) -> Tensor:
        for _ in range(GRAPH_CALLS):
            query = call(query)
        return query

    def compiled(name: str, cpp_wrapper: bool) -> Contestant:
        graph = torch.compile(chain, fullgraph=True, options={"cpp_wrapper": cpp_wrapper})
        note = f"one of {GRAPH_CALLS} in a graph, which is called from Python"
        return Contestant(name, lambda layer: graph(problem.query), note, calls=GRAPH_CALLS)

    eager = Contestant("pagedattn", lambda layer: call(problem.query))
    # Over one key, attention returns its value: a chain of calls ends where one call does.
    check(eager, problem.expected, TOLERANCE[torch.float32])
    graphs = []
    for graph in (
        compiled("pagedattn, torch.compile", cpp_wrapper=False),
        compiled("pagedattn, torch.compile with cpp_wrapper", cpp_wrapper=True),
    ):
        try:
            check(graph, problem.expected, TOLERANCE[torch.float32])
        except WrongResult:
            raise
        except Exception as reason:  # a compiler may lack what it needs for the device
            note_left_out(f"call overhead: {graph.name}", reason)
        else:
            graphs.append(graph)
    total = torch.empty_like(problem.query)
    limit = Contestant(
        "torch.add(out=)", lambda layer: torch.add(problem.query, problem.query, out=total)
    )
    title = "call overhead"
    contestants = [repeated(limit), repeated(eager), *graphs]
    timer = timer_for(options.device, capturable=False)
    timings = measure(contestants, 1, options.seconds, timer, progress_bar(title))
    return Group(title, timings, Place("call-overhead", "1 token, 1 head, d32", title))
