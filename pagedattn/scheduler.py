"""Continuous batching: which tokens of which requests the next step computes.

After every step requests join and leave (Orca, OSDI 2022); long prompts are cut into chunks that
share a step with the decodes of others (Sarathi-Serve, OSDI 2024); when blocks run out, the least
urgent request gives up its blocks and is recomputed later, or has them moved to the host meanwhile
(vLLM, SOSP 2023).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .block_manager import AllocationStatus, BlockManager, OutOfBlocks
from .request import FinishReason, Request, RequestState
from .sizing import blocks_for_tokens

if TYPE_CHECKING:
    from .swap_space import SwapSpace


@dataclass
class Step:
    """What one step computes.

    budget: how many tokens can still join.
    num_tokens: how many of each request's uncomputed tokens; requests in order of the batch.
    copies: (src, dst) blocks to copy before anything is written.
    """

    budget: int
    num_tokens: dict[Request, int] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return list(self.num_tokens)

    def add(self, request: Request, count: int) -> None:
        """Takes ``count`` tokens of a request into the step."""
        self.num_tokens[request] = count
        self.budget -= count

    def remove(self, request: Request) -> None:
        """Leaves a request out, if it was in the step, and gives its tokens back."""
        self.budget += self.num_tokens.pop(request, 0)

    def samples(self, request: Request) -> bool:
        """Whether the step computes the request's last known token, so that a new one follows."""
        return self.num_tokens[request] == request.num_uncomputed_tokens


class Scheduler:
    """First come first served within a priority (lower values first), over one block manager.

    max_num_batched_tokens: tokens computed per step. max_num_seqs: sequences running at once.
    enable_chunked_prefill: without it a prompt is computed in one step, or waits.
    swap_space: where preempted requests' blocks go; without it they are recomputed. They are moved
    while a step is scheduled, before anything of that step runs.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        enable_chunked_prefill: bool = True,
        swap_space: SwapSpace | None = None,
    ) -> None:
        self.block_manager = block_manager
        self.max_num_batched_tokens = max_num_batched_tokens
        # Each running sequence must be able to decode in every step.
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self.enable_chunked_prefill = enable_chunked_prefill
        self.swap_space = swap_space
        self.waiting: list[Request] = []  # or swapped; most urgent first
        self.running: dict[str, Request] = {}  # by sequence_id
        self.num_preemptions = 0
        self._num_arrivals = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queues a request. Raises ValueError if it asks for more samples than can ever run."""
        if request.num_unforked_samples > self.max_num_seqs:
            raise ValueError(
                f"{request.num_unforked_samples} samples asked for, but at most {self.max_num_seqs}"
                " sequences run at once (the smaller of max_num_seqs and max_num_batched_tokens)"
            )
        request.arrival = self._num_arrivals
        self._num_arrivals += 1
        self._enqueue(request)

    def schedule(self) -> Step:
        """Plans a step and makes room for it: after this every planned token has its slot.

        Raises OutOfBlocks if a request does not fit although no other holds a block.
        """
        step = Step(budget=self.max_num_batched_tokens)
        preemptions = self.num_preemptions
        self._continue_running(step)
        # Not into blocks that were just taken: copies planned before may still have to write there.
        while self.num_preemptions == preemptions and self._admit_next(step):
            pass
        return step

    def complete(self, step: Step) -> None:
        """Notes that the step's tokens are in the cache. Call before the new tokens are added."""
        for request, count in step.num_tokens.items():
            request.num_computed_tokens += count

    def fail(self, step: Step) -> None:
        """Puts the requests of a step that was not computed back in the queue."""
        for request in step.requests:
            if request.state is RequestState.RUNNING:
                self._preempt(request)

    def fork(self, request: Request) -> list[Request]:
        """Splits a request whose prompt is computed into its samples; the first is itself."""
        children = [request.fork(i) for i in range(1, request.num_unforked_samples)]
        for child in children:
            self.block_manager.fork(request.sequence_id, child.sequence_id)
            self.running[child.sequence_id] = child
        request.num_unforked_samples = 1
        return [request, *children]

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request; a running one gives its blocks back. A finished one stays as it is."""
        if request.state is RequestState.RUNNING:
            self._release(request)
        elif request.state is RequestState.FINISHED:
            return
        else:
            self.waiting.remove(request)
            if request.state is RequestState.SWAPPED:
                self.block_manager.free(request.sequence_id)
        request.finish(reason)

    def _continue_running(self, step: Step) -> None:
        # Room is made before anything is appended: who is preempted then has no uncomputed token.
        counts = self._share_out(step.budget)
        while len(self.running) > 1 and self._lacks_blocks(counts):
            self._take_blocks(self._least_urgent(), step)
            counts = self._share_out(step.budget)
        requests = list(counts)
        result = self.block_manager.append_batch(
            [request.sequence_id for request in requests],
            [token_id for r, count in counts.items() for token_id in r.next_token_ids(count)],
            list(counts.values()),
        )
        step.copies += result.copies
        failed = [requests[i] for i in result.failed]
        for request in requests:
            if request not in failed:
                step.add(request, counts[request])
        for request in failed:
            if request.state is RequestState.RUNNING and self._grow(request, counts[request], step):
                step.add(request, counts[request])

    def _share_out(self, budget: int) -> dict[Request, int]:
        """How many tokens each running request computes, most urgent first."""
        counts: dict[Request, int] = {}
        # Decodes first: a prompt that resumes must not hold up everyone's next token.
        for request in sorted(self.running.values(), key=lambda r: (not r.is_decoding, r.urgency)):
            count = min(request.num_uncomputed_tokens, budget)
            if count > 0:
                counts[request] = count
                budget -= count
        return counts

    def _lacks_blocks(self, counts: dict[Request, int]) -> bool:
        """Whether these tokens take more blocks than are free, copies of shared ones aside."""
        size = self.block_manager.block_size
        needed = 0
        for request, count in counts.items():
            start = request.num_computed_tokens
            needed += blocks_for_tokens(start + count, size) - blocks_for_tokens(start, size)
        return needed > self.block_manager.num_free_blocks

    def _least_urgent(self) -> Request:
        return max(self.running.values(), key=lambda r: r.urgency)

    def _grow(self, request: Request, count: int, step: Step) -> bool:
        """Appends the next ``count`` tokens, at the expense of less urgent requests if need be.

        False: the request itself was the least urgent one.
        """
        token_ids = request.next_token_ids(count)
        while True:
            try:
                result = self.block_manager.append(request.sequence_id, token_ids)
            except OutOfBlocks:
                if len(self.running) > 1:
                    self._take_blocks(self._least_urgent(), step)
                elif not self._drop_swapped():
                    raise
                if request.state is not RequestState.RUNNING:
                    return False
            else:
                step.copies += result.copies
                return True

    def _admit_next(self, step: Step) -> bool:
        """Lets the most urgent waiting request into the step; False: it, and all others, wait."""
        places = self.max_num_seqs - sum(r.num_unforked_samples for r in self.running.values())
        if not self.waiting or step.budget == 0 or self.waiting[0].num_unforked_samples > places:
            return False
        request = self.waiting[0]
        try:
            count = self._admit(request, step)
        except OutOfBlocks:
            # What swapped requests share with nobody who runs may still be on the device.
            if self.running or not self._drop_swapped():
                raise
            return True
        if count == 0:
            return False
        step.add(request, count)
        return True

    def _admit(self, request: Request, step: Step) -> int:
        """Gives a request blocks; returns how many tokens it computes, 0 if it must wait."""
        manager, token_ids = self.block_manager, request.token_ids
        # With nothing running there is nothing to wait for: try, and let the error tell.
        if self.running and manager.can_allocate(len(token_ids)) is not AllocationStatus.OK:
            return 0
        if request.state is RequestState.SWAPPED:
            return self._swap_in(request, step)
        num_cached = manager.lookup(token_ids, cache_salt=request.cache_salt)
        uncached = len(token_ids) - num_cached
        count = min(uncached, step.budget)
        if count < uncached and not self.enable_chunked_prefill:
            return 0
        allocation = manager.allocate(
            request.sequence_id, token_ids[: num_cached + count], cache_salt=request.cache_salt
        )
        request.admit(allocation.num_cached_tokens)
        self._start(request)
        return count

    def _swap_in(self, request: Request, step: Step) -> int:
        assert self.swap_space is not None
        count = min(request.num_uncomputed_tokens, step.budget)
        self.swap_space.move_in(self.block_manager.swap_in(request.sequence_id))
        request.swap_in()
        self._start(request)
        return count if self._grow(request, count, step) else 0

    def _start(self, request: Request) -> None:
        del self.waiting[0]
        self.running[request.sequence_id] = request

    def _take_blocks(self, victim: Request, step: Step) -> None:
        """Preempts a running request, by swapping where that is possible."""
        # A request that is in the step already holds blocks that are not computed yet.
        if self.swap_space is None or victim in step.num_tokens or not self._swap_out(victim):
            for preempted in self._preempt(victim):
                step.remove(preempted)

    def _swap_out(self, request: Request) -> bool:
        """False: the host has no room."""
        assert self.swap_space is not None
        try:
            moves = self.block_manager.swap_out(request.sequence_id)
        except OutOfBlocks:
            return False
        self.swap_space.move_out(moves)
        del self.running[request.sequence_id]
        request.swap_out()
        self._enqueue(request)
        self.num_preemptions += 1
        return True

    def _drop_swapped(self) -> bool:
        """Takes the blocks of the least urgent swapped request; False if there is none."""
        swapped = [r for r in self.waiting if r.state is RequestState.SWAPPED]
        if not swapped:
            return False
        self.block_manager.free(swapped[-1].sequence_id)
        swapped[-1].preempt()
        return True

    def _preempt(self, request: Request) -> list[Request]:
        """Sends a request back to the queue, and those that share its uncomputed blocks too."""
        preempted = [request]
        holders = self._release(request)
        request.preempt()
        self._enqueue(request)
        self.num_preemptions += 1
        for holder in holders:
            if holder.state is RequestState.RUNNING:
                preempted += self._preempt(holder)
        return preempted

    def _release(self, request: Request) -> list[Request]:
        """Frees a running request's blocks; returns the holders of those not computed."""
        del self.running[request.sequence_id]
        holders = self.block_manager.free(
            request.sequence_id, num_computed=request.num_computed_tokens
        )
        return [self.running[sequence_id] for sequence_id in holders]

    def _enqueue(self, request: Request) -> None:
        insort(self.waiting, request, key=lambda r: r.urgency)
