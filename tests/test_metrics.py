"""Metrics of the engine, without a model."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagedattn.block_manager import BlockManager
from pagedattn.metrics import Latency, Metrics
from pagedattn.request import Request
from pagedattn.sampling import SamplingParams
from pagedattn.scheduler import Scheduler


@pytest.fixture
def scheduler():
    return Scheduler(BlockManager(10, 8), max_num_batched_tokens=64, max_num_seqs=4)


@pytest.fixture
def metrics(scheduler):
    return Metrics(scheduler, block_size=8, max_model_len=40)


def run_step(scheduler, metrics):
    step = scheduler.schedule()
    scheduler.complete(step)
    metrics.observe_step(0.5)


def test_usage_and_waste(scheduler, metrics):
    scheduler.add(Request("a", list(range(12)), SamplingParams(), seed=0))
    run_step(scheduler, metrics)
    values = metrics.as_dict()
    assert values["gpu_cache_usage_perc"] == pytest.approx(0.2)
    assert values["peak_cache_usage_perc"] == pytest.approx(0.2)
    assert values["wasted_slots_paged"] == pytest.approx(4 / 16)
    assert values["wasted_slots_contiguous"] == pytest.approx(28 / 40)
    assert values["avg_sequence_length"] == 12
    assert values["max_model_len"] == 40
    assert values["num_requests_running"] == 1


def test_latencies_and_rates(scheduler, metrics):
    request = Request("a", list(range(12)), SamplingParams(), seed=0)
    request.arrival_time = 100.0
    scheduler.add(request)
    run_step(scheduler, metrics)
    for now in (100.25, 100.5, 101.0):
        metrics.observe_token(request, now)
    values = metrics.as_dict()
    assert values["time_to_first_token_seconds_mean"] == pytest.approx(0.25)
    assert values["inter_token_latency_seconds_mean"] == pytest.approx(0.375)
    assert values["inter_token_latency_seconds_p99"] == pytest.approx(0.5)
    assert values["tokens_per_second"] == pytest.approx(3 / 0.5)
    assert values["prefix_cache_hit_rate"] == 0.0


def test_prefix_hits(scheduler, metrics):
    for name in "ab":
        request = Request(name, list(range(20)), SamplingParams(), seed=0)
        scheduler.add(request)
        run_step(scheduler, metrics)
        metrics.observe_token(request)
    assert metrics.prefix_cache_hit_rate == pytest.approx(16 / 40)


def test_percentile_is_nearest_rank():
    latency = Latency()
    assert latency.percentile(50) == 0.0
    for value in (4.0, 1.0, 3.0, 2.0):
        latency.observe(value)
    assert [latency.percentile(p) for p in (0, 25, 50, 99)] == [1.0, 1.0, 2.0, 4.0]
    assert latency.mean == 2.5


def test_prometheus_text_parses_and_agrees(scheduler, metrics):
    request = Request("a", list(range(12)), SamplingParams(), seed=0)
    scheduler.add(request)
    run_step(scheduler, metrics)
    metrics.observe_token(request, request.arrival_time + 0.03)
    families = {f.name: f for f in text_string_to_metric_families(metrics.prometheus_text())}
    usage = families["pagedattn_gpu_cache_usage_perc"].samples[0].value
    assert usage == pytest.approx(0.2)
    assert families["pagedattn_generation_tokens"].type == "counter"
    histogram = families["pagedattn_time_to_first_token_seconds"]
    buckets = {s.labels["le"]: s.value for s in histogram.samples if s.name.endswith("_bucket")}
    assert buckets["0.025"] == 0
    assert buckets["0.05"] == buckets["+Inf"] == 1
