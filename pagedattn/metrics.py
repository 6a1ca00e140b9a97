"""What the engine measures about itself."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .request import Request
from .scheduler import Scheduler
from .sizing import blocks_for_tokens

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_NUM_RECENT = 10_000  # latencies kept for percentiles
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Latency:
    """Observations in seconds: mean and histogram over all, percentiles over the recent ones."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.bucket_counts = [0] * (len(_BUCKETS) + 1)  # the last one: above all bounds
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        bucket = next((i for i, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))
        self.bucket_counts[bucket] += 1
        self._recent.append(seconds)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Nearest-rank percentile of the recent observations; 0 without any."""
        if not self._recent:
            return 0.0
        rank = math.ceil(percent / 100 * len(self._recent))
        return sorted(self._recent)[max(rank, 1) - 1]


@dataclass
class _SlotSum:
    """Slots reserved and slots that hold a token, summed over steps."""

    reserved: int = 0
    empty: int = 0

    @property
    def wasted(self) -> float:
        return self.empty / self.reserved if self.reserved else 0.0


class Metrics:
    """Counters, gauges and latencies of one engine; times are in seconds.

    The scheduler is read for gauges; everything else is told by ``observe_*``.
    """

    def __init__(self, scheduler: Scheduler, block_size: int, max_model_len: int) -> None:
        self._scheduler = scheduler
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._last_token_time: dict[str, float] = {}  # by sequence_id
        self.time_to_first_token = Latency()
        self.inter_token_latency = Latency()
        self.busy_seconds = 0.0  # spent in steps
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_finished = 0
        self.finished_tokens = 0  # prompt and answer of finished sequences
        self.peak_cache_usage = 0.0
        self.paged_slots = _SlotSum()
        self.contiguous_slots = _SlotSum()

    def observe_step(self, seconds: float) -> None:
        """A step is done; its requests still hold their blocks."""
        self.num_steps += 1
        self.busy_seconds += seconds
        stats = self._scheduler.block_manager.stats()
        self.peak_cache_usage = max(self.peak_cache_usage, stats.usage)
        lengths = [r.num_computed_tokens for r in self._scheduler.running.values()]
        tails = sum(
            blocks_for_tokens(length, self._block_size) * self._block_size - length
            for length in lengths
        )
        self.paged_slots.reserved += (stats.num_blocks - stats.num_free) * self._block_size
        self.paged_slots.empty += tails
        self.contiguous_slots.reserved += len(lengths) * self._max_model_len
        self.contiguous_slots.empty += len(lengths) * self._max_model_len - sum(lengths)

    def observe_token(self, request: Request, now: float | None = None) -> None:
        """``request`` got a new token."""
        now = time.perf_counter() if now is None else now
        last = self._last_token_time.get(request.sequence_id)
        if last is None:
            self.time_to_first_token.observe(now - request.arrival_time)
            if request.sample == 0:
                self.num_prompt_tokens += request.num_prompt_tokens
                self.num_cached_prompt_tokens += request.num_cached_tokens or 0
        else:
            self.inter_token_latency.observe(now - last)
        self._last_token_time[request.sequence_id] = now
        self.num_generation_tokens += 1

    def observe_finish(self, request: Request) -> None:
        """``request`` ended, for whatever reason."""
        self._last_token_time.pop(request.sequence_id, None)
        self.num_finished += 1
        self.finished_tokens += len(request.token_ids)

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Part of the prompt tokens that the prefix cache held."""
        prompt = self.num_prompt_tokens
        return self.num_cached_prompt_tokens / prompt if prompt else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the time spent in steps."""
        return self.num_generation_tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def avg_sequence_length(self) -> float:
        """Mean tokens of the sequences finished and running; compare ``max_model_len``."""
        running = self._scheduler.running.values()
        count = self.num_finished + len(running)
        total = self.finished_tokens + sum(len(request.token_ids) for request in running)
        return total / count if count else 0.0

    def as_dict(self) -> dict[str, float]:
        """All of it by name. Usage, rates and waste are fractions (``_perc`` is vLLM's word)."""
        values: dict[str, float] = {
            "gpu_cache_usage_perc": self._scheduler.block_manager.stats().usage,
            "peak_cache_usage_perc": self.peak_cache_usage,
            "num_preemptions": self._scheduler.num_preemptions,
            "prefix_cache_hit_rate": self.prefix_cache_hit_rate,
            "avg_sequence_length": self.avg_sequence_length,
            "max_model_len": self._max_model_len,
            "num_requests_running": len(self._scheduler.running),
            "num_requests_waiting": len(self._scheduler.waiting),
            "num_steps": self.num_steps,
            "prompt_tokens": self.num_prompt_tokens,
            "generation_tokens": self.num_generation_tokens,
            "tokens_per_second": self.tokens_per_second,
            "wasted_slots_paged": self.paged_slots.wasted,
            "wasted_slots_contiguous": self.contiguous_slots.wasted,
        }
        for name, latency in self._latencies().items():
            values[f"{name}_mean"] = latency.mean
            values[f"{name}_p50"] = latency.percentile(50)
            values[f"{name}_p99"] = latency.percentile(99)
        return values

    def prometheus_text(self) -> str:
        """The same in Prometheus' text format, names prefixed ``pagedattn_``.

        Raises ImportError without the package ``prometheus_client``.
        """
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Metric families; with it a Metrics can be registered as a Prometheus collector."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        counters = {"num_preemptions", "num_steps", "prompt_tokens", "generation_tokens"}
        latencies = self._latencies()
        for name, value in self.as_dict().items():
            if name.startswith(tuple(latencies)):
                continue
            family: Any = CounterMetricFamily if name in counters else GaugeMetricFamily
            yield family(f"pagedattn_{name}", name.replace("_", " "), value=value)
        for name, latency in latencies.items():
            bounds = [*map(str, _BUCKETS), "+Inf"]
            cumulative = 0
            buckets = []
            for bound, count in zip(bounds, latency.bucket_counts, strict=True):
                cumulative += count
                buckets.append((bound, cumulative))
            yield HistogramMetricFamily(
                f"pagedattn_{name}",
                name.replace("_", " "),
                buckets=buckets,
                sum_value=latency.total,
            )

    def _latencies(self) -> dict[str, Latency]:
        return {
            "time_to_first_token_seconds": self.time_to_first_token,
            "inter_token_latency_seconds": self.inter_token_latency,
        }
