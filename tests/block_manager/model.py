"""The block manager's meaning in plain Python: dicts, lists and scans, nothing clever.

A prefix is `(salt, tokens)` with all tokens from the start of the prompt. `published` says which
block holds a prefix; that dict is the whole prefix cache.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

Prefix = tuple[str | None, tuple[int, ...]]


class ModelOutOfBlocks(Exception):
    def __init__(self, needed: int, free: int, total: int):
        super().__init__(needed, free, total)
        self.needed, self.free, self.total = needed, free, total


@dataclass(frozen=True)
class Device:
    block: int


@dataclass(frozen=True)
class Host:
    block: int


@dataclass
class Request:
    salt: str | None
    tokens: list[int]
    places: list[Device | Host | None] = field(default_factory=list)  # None: given back
    first_own: int = 0
    window_position: int = 0
    swapped: bool = False


class ModelBlockManager:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        watermark: float = 0.0,
        window: int | None = None,
    ):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.caching, self.watermark, self.window = enable_prefix_caching, watermark, window
        self.num_host_blocks = num_host_blocks
        self.requests: dict[str, Request] = {}
        self.published: dict[Prefix, int] = {}
        self.pins: Counter[Prefix] = Counter()
        # Next to hand out first. `cached` is in LRU order.
        self.empty = list(range(0 if window is None else 1, num_blocks))
        self.cached: list[int] = []
        self.free_hosts = list(range(num_host_blocks))
        self.capacity = len(self.empty)
        self.held: list[int] = []  # sources of the running batch's copies: free only after it
        self.queried = self.hit = self.evictions = self.copies_on_write = 0

    # ---- what can be seen

    def holders(self, place: Device | Host) -> list[str]:
        return [name for name, r in self.requests.items() if place in r.places]

    def ref_count(self, block: int) -> int:
        return len(self.holders(Device(block)))

    def num_free(self) -> int:
        return len(self.empty) + len(self.cached)

    def pinned_blocks(self) -> list[int]:
        return [b for prefix, b in self.published.items() if self.pins[prefix] > 0]

    def block_table(self, name: str) -> list[int]:
        request = self.resident(name)
        return [0 if p is None else p.block for p in request.places]

    def match(self, salt: str | None, tokens: list[int], max_blocks: int) -> list[int]:
        blocks: list[int] = []
        while self.caching and len(blocks) < max_blocks:
            block = self.published.get(self.prefix(salt, tokens, len(blocks)))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def lookup(self, tokens: list[int], salt: str | None) -> int:
        return len(self.match(salt, tokens, self.max_hits(tokens))) * self.block_size

    def can_allocate(self, num_tokens: int) -> str:
        needed = self.blocks_for(num_tokens)
        reserve = math.ceil(self.watermark * self.num_blocks)
        if self.num_free() - needed >= reserve:
            return "OK"
        return "LATER" if self.capacity - needed >= reserve else "NEVER"

    def common_prefix_blocks(self, names: list[str]) -> int:
        tables = []
        for name in names:
            request = self.resident(name)
            table = [] if None in request.places else self.block_table(name)
            tables.append(table[: len(request.tokens) // self.block_size])
        common = 0
        while tables and all(len(t) > common for t in tables):
            if len({t[common] for t in tables}) > 1:
                break
            common += 1
        return common

    # ---- small words

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def max_hits(self, tokens: list[int]) -> int:
        return max(0, len(tokens) - 1) // self.block_size

    def prefix(self, salt: str | None, tokens: list[int], index: int) -> Prefix:
        return (salt, tuple(tokens[: (index + 1) * self.block_size]))

    def content(self, block: int) -> Prefix | None:
        return next((p for p, b in self.published.items() if b == block), None)

    def find(self, name: str) -> Request:
        if name not in self.requests:
            raise KeyError(name)
        return self.requests[name]

    def resident(self, name: str) -> Request:
        request = self.find(name)
        if request.swapped:
            raise ValueError("swapped out")
        return request

    def is_free(self, block: int) -> bool:
        return block in self.empty or block in self.cached

    def is_kept(self, block: int) -> bool:
        """Whether the block stays out of the free ones though no request holds it."""
        return block in self.pinned_blocks() or block in self.held

    def take(self, block: int) -> int:
        """Takes a block out of the free ones, if it is there."""
        for free in (self.empty, self.cached):
            if block in free:
                free.remove(block)
        return block

    def take_any(self) -> int:
        if self.empty:
            return self.empty.pop(0)
        block = self.cached.pop(0)
        self.unpublish(block)
        self.evictions += 1
        return block

    def settle(self, block: int) -> None:
        """Puts a block among the free ones if nothing holds it."""
        if self.ref_count(block) > 0 or self.is_kept(block) or self.is_free(block):
            return
        if self.content(block) is None:
            self.empty.insert(0, block)
        else:
            self.cached.append(block)

    def publish(self, request: Request, first: int, last: int) -> None:
        for i in range(first, last):
            place = request.places[i]
            assert isinstance(place, Device)
            if self.caching:
                self.published.setdefault(self.prefix(request.salt, request.tokens, i), place.block)

    def unpublish(self, block: int) -> None:
        content = self.content(block)
        if content is not None:
            del self.published[content]

    def drop_places(self, request: Request, keep: int) -> None:
        while len(request.places) > keep:
            place = request.places.pop()
            if isinstance(place, Device):
                self.settle(place.block)
            elif isinstance(place, Host) and not self.holders(place):
                self.free_hosts.insert(0, place.block)

    # ---- calls

    def allocate(self, name: str, tokens: list[int], salt: str | None) -> tuple[list[int], int]:
        if name in self.requests or not tokens:
            raise ValueError(name)
        hits = self.match(salt, tokens, self.max_hits(tokens))
        total = self.blocks_for(len(tokens))
        needed = total - sum(not self.is_free(b) for b in hits)
        if needed > self.num_free():
            raise ModelOutOfBlocks(needed, self.num_free(), self.capacity)
        request = Request(salt, list(tokens), first_own=len(hits))
        self.requests[name] = request
        request.places = [Device(self.take(b)) for b in hits]
        request.places += [Device(self.take_any()) for _ in range(total - len(hits))]
        self.publish(request, len(hits), len(tokens) // self.block_size)
        if self.caching:
            self.queried += len(tokens)
            self.hit += len(hits) * self.block_size
        return self.block_table(name), len(hits) * self.block_size

    def append(self, name: str, tokens: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        request = self.resident(name)
        if not tokens:
            return [], []
        size, begin = self.block_size, len(request.tokens)
        end = begin + len(tokens)
        last = request.places[-1].block if begin % size else None
        must_copy = last is not None and (self.ref_count(last) > 1 or last in self.pinned_blocks())

        expired = []
        if self.window is not None:
            for i, place in enumerate(request.places):
                if place is not None and (i + 1) * size - 1 < begin - self.window:
                    expired.append(i)
        becoming_free = sum(
            self.ref_count(request.places[i].block) == 1
            and not self.is_kept(request.places[i].block)
            for i in expired
        )
        needed = self.blocks_for(end) - len(request.places) + must_copy - becoming_free
        if needed > self.num_free():
            raise ModelOutOfBlocks(needed, self.num_free(), self.capacity)

        for i in reversed(expired):
            place, request.places[i] = request.places[i], None
            self.settle(place.block)
        if self.window is not None:
            request.window_position = begin
        copies = []
        if must_copy:
            request.places[-1] = Device(self.take_any())
            self.settle(last)
            copies.append((last, request.places[-1].block))
            self.copies_on_write += 1
        elif last is not None:
            self.unpublish(last)
        while len(request.places) < self.blocks_for(end):
            request.places.append(Device(self.take_any()))
        request.first_own = min(request.first_own, begin // size)
        request.tokens += tokens
        self.publish(request, begin // size, end // size)
        slots = [request.places[p // size].block * size + p % size for p in range(begin, end)]
        return slots, copies

    def append_batch(
        self, names: list[str], tokens: list[list[int]]
    ) -> tuple[list[int], list[int], list[tuple[int, int]]]:
        """(failed, slots, copies)"""
        failed: list[int] = []
        slots: list[int] = []
        copies: list[tuple[int, int]] = []
        for i, (name, its_tokens) in enumerate(zip(names, tokens, strict=True)):
            try:
                its_slots, its_copies = self.append(name, its_tokens)
            except ModelOutOfBlocks:
                failed.append(i)
                its_slots, its_copies = [-1] * len(its_tokens), []
            slots += its_slots
            copies += its_copies
            self.held += [source for source, _ in its_copies]
        held, self.held = self.held, []
        for block in held:
            self.settle(block)
        return failed, slots, copies

    def fork(self, parent: str, child: str) -> None:
        request = self.resident(parent)
        if child in self.requests:
            raise ValueError(child)
        self.requests[child] = Request(
            request.salt,
            list(request.tokens),
            list(request.places),
            len(request.places),
            request.window_position,
        )

    def truncate(self, name: str, num_tokens: int) -> None:
        request = self.resident(name)
        if not request.window_position <= num_tokens <= len(request.tokens) or num_tokens < 0:
            raise ValueError(num_tokens)
        del request.tokens[num_tokens:]
        self.drop_places(request, self.blocks_for(num_tokens))

    def free(self, name: str, num_computed: int | None) -> set[str]:
        request = self.find(name)
        affected: set[str] = set()
        if num_computed is not None:
            if not 0 <= num_computed <= len(request.tokens):
                raise ValueError(num_computed)
            for i in range(request.first_own, len(request.places)):
                place = request.places[i]
                filled_to = min((i + 1) * self.block_size, len(request.tokens))
                if isinstance(place, Device) and filled_to > num_computed:
                    self.unpublish(place.block)
                    affected |= set(self.holders(place)) - {name}
        self.drop_places(request, 0)
        del self.requests[name]
        return affected

    def pin_prefix(self, tokens: list[int], salt: str | None) -> int:
        blocks = self.match(salt, tokens, len(tokens) // self.block_size)
        for i, block in enumerate(blocks):
            self.pins[self.prefix(salt, tokens, i)] += 1
            self.take(block)
        return len(blocks) * self.block_size

    def unpin_prefix(self, tokens: list[int], salt: str | None) -> int:
        count = 0
        for i in reversed(range(len(tokens) // self.block_size)):
            prefix = self.prefix(salt, tokens, i)
            if self.pins[prefix] > 0:
                self.pins[prefix] -= 1
                count += 1
                if prefix in self.published:
                    self.settle(self.published[prefix])
        return count * self.block_size

    def swap_out(self, name: str) -> list[tuple[int, int]]:
        request = self.resident(name)
        leaving = [
            p
            for p in request.places
            if p is not None
            and p.block not in self.pinned_blocks()
            and all(self.requests[h].swapped for h in self.holders(p) if h != name)
        ]
        if len(leaving) > len(self.free_hosts):
            raise ModelOutOfBlocks(len(leaving), len(self.free_hosts), self.num_host_blocks)
        moves = [(p.block, self.free_hosts.pop(0)) for p in leaving]
        for block, host in moves:
            self.replace(Device(block), Host(host))
        request.swapped = True
        for block, _ in reversed(moves):
            self.settle(block)
        return moves

    def swap_in(self, name: str) -> list[tuple[int, int]]:
        request = self.find(name)
        if not request.swapped:
            raise ValueError(name)
        hosts = [p for p in request.places if isinstance(p, Host)]
        if len(hosts) > self.num_free():
            raise ModelOutOfBlocks(len(hosts), self.num_free(), self.capacity)
        moves = [(p.block, self.take_any()) for p in hosts]
        for host, block in moves:
            self.replace(Host(host), Device(block))
            self.free_hosts.insert(0, host)
        request.swapped = False
        for i, place in enumerate(request.places[: len(request.tokens) // self.block_size]):
            if place is not None and place.block in [b for _, b in moves]:
                self.publish(request, i, i + 1)
        return moves

    def replace(self, old: Device | Host, new: Device | Host) -> None:
        for request in self.requests.values():
            request.places = [new if p == old else p for p in request.places]

    def reset_prefix_cache(self) -> bool:
        hosts_used = len(self.free_hosts) < self.num_host_blocks
        if self.num_free() != self.capacity or self.pins.total() > 0 or hosts_used:
            return False
        for block in list(self.cached):
            self.cached.remove(block)
            self.unpublish(block)
            self.empty.insert(0, block)
        return True
