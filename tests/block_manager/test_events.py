"""The stream of KV events rebuilds what the manager can serve."""

from __future__ import annotations

import random

from pagedattn.block_manager import BlockManager, KvEvent

SIZE = 4


class Router:
    """Knows from the events alone which prefixes a worker has."""

    def __init__(self) -> None:
        self.chains: dict[int, tuple[str | None, tuple[int, ...]]] = {}
        self.served: set[int] = set()

    def apply(self, events: list[KvEvent]) -> None:
        for event in events:
            if event.kind == "cleared":
                self.served.clear()
            elif event.kind == "removed":
                self.served.remove(event.prefix_id)
            else:
                if event.parent_id is None:
                    salt, before = event.cache_salt, ()
                else:
                    salt, before = self.chains[event.parent_id]
                self.chains[event.prefix_id] = (salt, (*before, *event.token_ids))
                self.served.add(event.prefix_id)

    def hit_tokens(self, prompt: list[int], salt: str | None) -> int:
        known = {self.chains[prefix] for prefix in self.served}
        length = 0
        while (salt, tuple(prompt[: length + SIZE])) in known and length + SIZE < len(prompt):
            length += SIZE
        return length


def test_stored_removed_cleared() -> None:
    manager = BlockManager(2, SIZE, enable_kv_events=True)
    manager.allocate("a", list(range(8)), cache_salt="s")
    first, second = manager.take_kv_events()
    assert first[2:] == (None, 0, [0, 1, 2, 3], "s")
    assert second[2:] == (first.prefix_id, 1, [4, 5, 6, 7], None)
    manager.free("a")
    assert manager.take_kv_events() == []
    manager.allocate("b", [1])
    (removed,) = manager.take_kv_events()
    assert removed[:2] == ("removed", second.prefix_id)
    manager.free("b")
    manager.reset_prefix_cache()
    assert [event.kind for event in manager.take_kv_events()] == ["cleared"]


def test_nothing_is_recorded_unless_asked_for() -> None:
    manager = BlockManager(2, SIZE)
    manager.allocate("a", list(range(8)))
    assert manager.take_kv_events() == []


def test_a_router_that_follows_the_events_predicts_every_hit() -> None:
    rng = random.Random(1)
    manager = BlockManager(12, SIZE, enable_kv_events=True)
    router = Router()
    for i in range(400):
        prompt = [rng.randrange(2) for _ in range(5) for _ in range(1)] * rng.randrange(1, 5)
        salt = rng.choice([None, "x"])
        assert router.hit_tokens(prompt, salt) == manager.lookup(prompt, cache_salt=salt)
        manager.allocate("a", prompt, cache_salt=salt)
        manager.append("a", [rng.randrange(2)] * rng.randrange(6))
        computed = None if i % 7 else rng.randrange(len(prompt))
        manager.free("a", num_computed=computed)
        router.apply(manager.take_kv_events())
