"""Scheduling without a model: the tokens "computed" are made up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedattn.block_manager import BlockManager, OutOfBlocks
from pagedattn.request import Request, RequestState
from pagedattn.sampling import SamplingParams
from pagedattn.scheduler import Scheduler, Step


class Memory:
    """What the blocks on the device and on the host hold, token by token; also a swap space."""

    def __init__(self, num_blocks, num_host_blocks, block_size):
        self.block_size = block_size
        self.device = [[None] * block_size for _ in range(num_blocks)]
        self.host = [[None] * block_size for _ in range(num_host_blocks)]
        self.num_moves_in = 0

    def move_out(self, pairs):
        for device, host in pairs:
            self.host[host] = list(self.device[device])

    def move_in(self, pairs):
        self.num_moves_in += 1
        for host, device in pairs:
            self.device[device] = list(self.host[host])

    def run(self, step, manager):
        """Copies, then writes; then each request of the step must find all of its tokens."""
        for src, dst in step.copies:
            self.device[dst] = list(self.device[src])
        for request, count in step.num_tokens.items():
            table = manager.block_table(request.sequence_id)
            start = request.num_computed_tokens
            for position in range(start, start + count):
                block = self.device[table[position // self.block_size]]
                block[position % self.block_size] = request.token_ids[position]
        for request, count in step.num_tokens.items():
            table = manager.block_table(request.sequence_id)
            found = [token for block in table for token in self.device[block]]
            end = request.num_computed_tokens + count
            assert found[:end] == request.token_ids[:end]


def make(num_blocks=32, budget=64, max_num_seqs=8, block_size=8, num_host_blocks=0, **options):
    manager = BlockManager(num_blocks, block_size, num_host_blocks=num_host_blocks)
    memory = Memory(num_blocks, num_host_blocks, block_size)
    scheduler = Scheduler(
        manager,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        swap_space=memory if num_host_blocks else None,
        **options,
    )
    scheduler.memory = memory
    return scheduler


def request(name, length, max_tokens=4, first=0, **options):
    params = SamplingParams(max_tokens=max_tokens, n=options.pop("n", 1))
    return Request(name, list(range(first, first + length)), params, seed=0, **options)


def run_step(scheduler):
    """One step with made-up tokens; returns {request_id: tokens computed}."""
    step = scheduler.schedule()
    scheduler.memory.run(step, scheduler.block_manager)
    sampled = [r for r in step.requests if step.samples(r)]
    scheduler.complete(step)
    for parent in sampled:
        for r in scheduler.fork(parent):
            r.token_ids.append(1000 * (1 + r.sample) + r.num_output_tokens)
            if r.num_output_tokens == r.params.max_tokens:
                scheduler.finish(r, "length")
    scheduler.block_manager.check_invariants()
    return {r.request_id: count for r, count in step.num_tokens.items()}


def add_rivals(scheduler: Scheduler) -> tuple[Request, Request]:
    """Two requests that together outgrow four blocks; the second is the less urgent one."""
    a, b = request("a", 16, max_tokens=16), request("b", 15, first=100, max_tokens=16)
    scheduler.add(a)
    scheduler.add(b)
    return a, b


def test_first_come_first_served_within_the_limits():
    scheduler = make(max_num_seqs=2)
    for i, name in enumerate("abc"):
        scheduler.add(request(name, 8, first=100 * i, max_tokens=2))
    assert run_step(scheduler) == {"a": 8, "b": 8}
    assert run_step(scheduler) == {"a": 1, "b": 1}
    assert run_step(scheduler) == {"c": 8}


def test_lower_priority_values_go_first():
    scheduler = make(max_num_seqs=1)
    for i, (name, priority) in enumerate([("a", 5), ("b", 0), ("c", 5)]):
        scheduler.add(request(name, 8, first=100 * i, max_tokens=1, priority=priority))
    assert [next(iter(run_step(scheduler))) for _ in range(3)] == ["b", "a", "c"]


def test_long_prompts_are_chunked_beside_decodes():
    scheduler = make(budget=10)
    scheduler.add(request("short", 4, max_tokens=8))
    scheduler.add(request("long", 30, first=100))
    assert run_step(scheduler) == {"short": 4, "long": 6}
    assert run_step(scheduler) == {"short": 1, "long": 9}
    assert run_step(scheduler) == {"short": 1, "long": 9}
    assert run_step(scheduler) == {"short": 1, "long": 6}
    assert run_step(scheduler) == {"short": 1, "long": 1}


def test_without_chunking_a_prompt_waits_for_a_step_with_room():
    scheduler = make(budget=32, enable_chunked_prefill=False)
    scheduler.add(request("a", 20, max_tokens=2))
    scheduler.add(request("b", 20, first=100))
    assert run_step(scheduler) == {"a": 20}
    assert run_step(scheduler) == {"a": 1, "b": 20}


def test_requests_of_one_step_share_their_prefix():
    scheduler = make()
    a, b = request("a", 20), request("b", 20)
    scheduler.add(a)
    scheduler.add(b)
    assert run_step(scheduler) == {"a": 20, "b": 4}
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 16)


def test_salt_keeps_prefixes_apart():
    scheduler = make()
    scheduler.add(request("a", 20, cache_salt="x"))
    scheduler.add(request("b", 20, cache_salt="y"))
    assert run_step(scheduler) == {"a": 20, "b": 20}


def test_least_urgent_request_is_preempted_and_recomputed():
    scheduler = make(num_blocks=4)
    a, b = add_rivals(scheduler)
    run_step(scheduler)
    while b.state is RequestState.RUNNING:
        run_step(scheduler)
    assert a.state is RequestState.RUNNING
    assert (b.num_computed_tokens, b.num_preemptions, scheduler.num_preemptions) == (0, 1, 1)
    while scheduler.has_unfinished:
        run_step(scheduler)
    assert a.num_output_tokens == b.num_output_tokens == 16
    assert scheduler.block_manager.num_free_blocks == 4


def test_least_urgent_request_is_swapped_and_goes_on_where_it_was():
    scheduler = make(num_blocks=4, num_host_blocks=4)
    a, b = add_rivals(scheduler)
    run_step(scheduler)
    while b.state is RequestState.RUNNING:
        run_step(scheduler)
    assert b.state is RequestState.SWAPPED
    assert (b.num_computed_tokens, b.num_preemptions, scheduler.num_preemptions) == (15, 1, 1)
    assert scheduler.block_manager.num_host_free_blocks == 2
    while b.state is RequestState.SWAPPED:
        run_step(scheduler)
    assert b.num_computed_tokens == 16
    while scheduler.has_unfinished:
        run_step(scheduler)
    assert a.num_output_tokens == b.num_output_tokens == 16
    assert scheduler.block_manager.num_free_blocks == 4
    assert scheduler.block_manager.num_host_free_blocks == 4


def test_what_does_not_fit_on_the_host_is_recomputed():
    scheduler = make(num_blocks=4, num_host_blocks=1)
    _, b = add_rivals(scheduler)
    run_step(scheduler)
    while b.state is RequestState.RUNNING:
        run_step(scheduler)
    assert (b.state, b.num_computed_tokens) == (RequestState.WAITING, 0)
    while scheduler.has_unfinished:
        run_step(scheduler)
    assert scheduler.memory.num_moves_in == 0


def test_abort_while_swapped():
    scheduler = make(num_blocks=4, num_host_blocks=4)
    a, b = add_rivals(scheduler)
    while b.state is not RequestState.SWAPPED:
        run_step(scheduler)
    scheduler.finish(b, "abort")
    scheduler.finish(a, "abort")
    assert not scheduler.has_unfinished
    assert scheduler.block_manager.num_free_blocks == 4
    assert scheduler.block_manager.num_host_free_blocks == 4


def test_a_request_that_outgrows_the_whole_pool_raises():
    scheduler = make(num_blocks=2)
    scheduler.add(request("a", 15, max_tokens=20))
    run_step(scheduler)
    run_step(scheduler)
    with pytest.raises(OutOfBlocks):
        run_step(scheduler)


def test_samples_share_the_prompt_by_fork():
    scheduler = make()
    scheduler.add(request("a", 12, n=3, max_tokens=3))
    run_step(scheduler)
    manager = scheduler.block_manager
    assert len(scheduler.running) == 3
    assert manager.num_free_blocks == 32 - 2
    step = scheduler.schedule()
    # Two copy the half-filled block; the last one owns it.
    assert len(step.copies) == 2
    assert manager.num_free_blocks == 32 - 4


def test_places_are_kept_for_samples_to_come():
    scheduler = make(max_num_seqs=4)
    scheduler.add(request("a", 8, n=3))
    scheduler.add(request("b", 8, first=50, n=2))
    assert run_step(scheduler) == {"a": 8}
    with pytest.raises(ValueError, match="5 samples asked for, but at most 4"):
        scheduler.add(request("c", 8, n=5))


def test_failed_step_is_computed_again_and_leaves_nothing_in_the_prefix_cache():
    scheduler = make()
    a, b = request("a", 20), request("b", 20)
    scheduler.add(a)
    scheduler.add(b)
    step = scheduler.schedule()
    scheduler.fail(step)
    assert a.state is b.state is RequestState.WAITING
    assert scheduler.block_manager.lookup(a.token_ids) == 0
    assert scheduler.block_manager.num_free_blocks == 32
    assert run_step(scheduler) == {"a": 20, "b": 4}


def test_abort_while_waiting_and_while_running():
    scheduler = make(max_num_seqs=1)
    a, b = request("a", 8), request("b", 8, first=50)
    scheduler.add(a)
    scheduler.add(b)
    run_step(scheduler)
    scheduler.finish(a, "abort")
    scheduler.finish(b, "abort")
    scheduler.finish(b, "abort")
    assert not scheduler.has_unfinished
    assert scheduler.block_manager.num_free_blocks == 32


def test_a_request_that_leaves_a_step_gives_its_tokens_back():
    step, a, b = Step(budget=10), request("a", 8), request("b", 8)
    step.add(a, 7)
    step.remove(b)
    assert (step.budget, step.num_tokens) == (3, {a: 7})
    step.remove(a)
    assert (step.budget, step.num_tokens) == (10, {})


def test_transitions_that_are_not_in_the_diagram_raise():
    r = request("a", 8)
    with pytest.raises(RuntimeError, match="'a' cannot go from waiting to waiting"):
        r.preempt()
    r.finish("abort")
    with pytest.raises(RuntimeError, match="'a' cannot go from finished to running"):
        r.admit(0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),  # prompt length
            st.integers(0, 2),  # which of a few prefixes
            st.integers(1, 12),  # max_tokens
            st.integers(1, 3),  # samples
            st.integers(0, 2),  # priority
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(7, 20),
    st.integers(1, 50),
    st.integers(3, 6),
    st.booleans(),
    st.sampled_from([0, 2, 20]),
)
def test_everything_ends_whatever_the_limits(
    specs, num_blocks, budget, max_num_seqs, chunked, num_host_blocks
):
    scheduler = make(
        num_blocks,
        budget if chunked else max(budget, 8 * num_blocks),
        max_num_seqs,
        enable_chunked_prefill=chunked,
        num_host_blocks=num_host_blocks,
    )
    requests = []
    for i, (length, prefix, max_tokens, n, priority) in enumerate(specs):
        r = request(str(i), length, max_tokens, 100 * prefix, n=min(n, budget), priority=priority)
        requests.append(r)
        scheduler.add(r)
    for _ in range(5000):
        if not scheduler.has_unfinished:
            break
        counts = run_step(scheduler)
        assert sum(counts.values()) <= scheduler.max_num_batched_tokens
        assert len(scheduler.running) <= max_num_seqs
        for r in scheduler.running.values():
            assert scheduler.block_manager.num_tokens(r.sequence_id) == r.num_computed_tokens
    assert all(r.num_output_tokens == r.params.max_tokens for r in requests)
    assert scheduler.block_manager.num_free_blocks == num_blocks
    assert scheduler.block_manager.num_host_free_blocks == num_host_blocks
