"""Incremental text: whole characters, stop strings, and the same as decoding at once."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagedattn.detokenizer import AnswerText


class ByteTokenizer:
    """A token per byte; 256 is special."""

    eos_token_id = 256

    def encode(self, text):
        return list(text.encode())

    def decode(self, token_ids, *, skip_special_tokens):
        return bytes(t for t in token_ids if t < 256).decode(errors="replace")


class PieceTokenizer:
    """Token i is the i-th of some pieces of text."""

    eos_token_id = None

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(self.pieces[i] for i in token_ids)


def feed(text, stop=(), finish=True):
    """The texts after each byte, and whether a stop string was seen."""
    answer = AnswerText(ByteTokenizer(), stop)
    seen = []
    for token in text.encode():
        stopped = answer.add(token)
        seen.append(answer.text)
        if stopped:
            return seen, True
    if finish:
        answer.finish()
        seen.append(answer.text)
    return seen, False


@given(st.text(max_size=30))
def test_grows_by_whole_characters_to_the_whole_text(text):
    text = text.replace("\N{REPLACEMENT CHARACTER}", "")
    seen, _ = feed(text)
    assert seen[-1] == text
    for before, after in itertools.pairwise(seen):
        assert after.startswith(before)
        assert text.startswith(before)


def test_a_character_cut_at_the_end_is_left_out():
    answer = AnswerText(ByteTokenizer())
    for token in "né".encode()[:-1]:
        answer.add(token)
    answer.finish()
    assert answer.text == "n"


def test_bytes_that_are_no_utf8_are_replaced_once_text_follows():
    answer = AnswerText(ByteTokenizer())
    for token in b"a\xffb":
        answer.add(token)
    assert answer.text == "a\N{REPLACEMENT CHARACTER}b"


def test_special_tokens_have_no_text():
    answer = AnswerText(ByteTokenizer())
    for token in (104, 256, 105):
        answer.add(token)
    assert answer.text == "hi"


def test_stop_string_never_shows_not_even_in_part():
    seen, stopped = feed("one END two", ["END"])
    assert stopped
    assert seen[-1] == "one "
    assert not any("E" in text for text in seen)


def test_text_that_only_began_like_a_stop_string_comes_out():
    seen, stopped = feed("ENTER", ["END"])
    assert not stopped
    assert seen[:3] == ["", "", "ENT"]
    assert feed("an EN", ["END"])[0][-1] == "an EN"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stops_at_the_first_stop_string_to_be_complete(text, stops):
    seen, stopped = feed(text, stops)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    assert stopped == bool(ends)
    if ends:
        assert len(seen) == ends[0]
        assert text.startswith(seen[-1])
        assert any(text[: ends[0]] == seen[-1] + s for s in stops)
    else:
        assert seen[-1] == text


@given(
    st.lists(st.text("abc", min_size=2, max_size=5), max_size=4),
    st.lists(st.text("abc", min_size=1, max_size=2), min_size=2, max_size=3),
)
def test_a_token_that_completes_several_stop_strings_is_cut_at_the_first(pieces, stops):
    answer = AnswerText(PieceTokenizer(pieces), stops)
    text = ""
    for i, piece in enumerate(pieces):
        stopped = answer.add(i)
        text += piece
        assert text.startswith(answer.text)
        positions = [text.find(stop) for stop in stops if stop in text]
        assert stopped == bool(positions)
        if stopped:
            assert answer.text == text[: min(positions)]
            return
    answer.finish()
    assert answer.text == text


def test_the_order_of_the_stop_strings_does_not_matter():
    for stops in (["b", "a"], ["a", "b"]):
        answer = AnswerText(PieceTokenizer(["xab"]), stops)
        assert answer.add(0)
        assert answer.text == "x"
