"""The detokeniser and the stop matcher against their vectors and against slow oracles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_server.chat.markers import Marker
from glm53_server.detokenizer import Detokenizer
from glm53_server.stop import StopMatcher
from glm53_server.tokenizer import Tokenizer
from glm53ctl.errors import BadModel

ROOT = Path(__file__).parents[2]
CASES = [
    json.loads(line)
    for line in (ROOT / "tests/data/api-vectors.jsonl").read_text("utf-8").splitlines()
]
STOPS = [case for case in CASES if case["kind"] == "stop"]
TOKENIZER = Tokenizer(ROOT / "reference/tiny/tokenizer.json")
UTF8 = [case for case in CASES if case["kind"] == "utf8"]


class Bytes:
    """A tokenizer whose ids are positions in a list of byte strings."""

    markers: dict = {}  # noqa: RUF012

    def __init__(self, pieces):
        self.pieces = pieces

    def bytes_of(self, token_id):
        return self.pieces[token_id]


@pytest.mark.parametrize("case", UTF8, ids=[case["id"] for case in UTF8])
def test_utf8_vector(case):
    pieces = [bytes.fromhex(piece) for piece in case["token_bytes_hex"]]
    detokenizer = Detokenizer(Bytes(pieces))
    deltas = [detokenizer.feed(i) for i in range(len(pieces))]
    assert [delta for delta in deltas if delta] == case["expect"]["deltas"]


@given(st.text(), st.lists(st.integers(0, 400), max_size=8))
def test_text_cut_anywhere_is_whole_again(text, cuts):
    raw = text.encode("utf-8", "replace")
    edges = sorted(min(cut, len(raw)) for cut in cuts)
    pieces = [raw[a:b] for a, b in zip([0, *edges], [*edges, len(raw)], strict=True)]
    detokenizer = Detokenizer(Bytes(pieces))
    deltas = [detokenizer.feed(i) for i in range(len(pieces))]
    assert "".join(deltas) == raw.decode()
    assert "\ufffd" not in "".join(deltas) or "\ufffd" in text


@given(st.text())
def test_tokens_of_a_text_give_the_text_and_never_a_control(text):
    text = text.encode("utf-8", "replace").decode()
    ids = TOKENIZER.encode([text])
    assert TOKENIZER.decode(ids) == text
    assert not set(ids) & (TOKENIZER.markers.keys() | TOKENIZER.hidden_ids)


def test_half_a_character_before_a_marker_is_dropped():
    half = next(i for i in range(TOKENIZER.vocab_size) if TOKENIZER.bytes_of(i) == b"\xf0")
    detokenizer = Detokenizer(TOKENIZER)
    ids = [half, TOKENIZER.id_of("</think>"), *TOKENIZER.encode(["Hi"])]
    assert "".join(p for i in ids if isinstance(p := detokenizer.feed(i), str)) == "Hi"
    assert Detokenizer(TOKENIZER).feed(TOKENIZER.id_of("</think>")) is Marker.THINK_END


def test_hidden_ids_have_no_text():
    end = TOKENIZER.id_of("<|endoftext|>")
    assert Detokenizer(TOKENIZER, hidden={end}).feed(end) == ""
    assert Detokenizer(TOKENIZER).feed(end) == "<|endoftext|>"


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"model": {"vocab": {}}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        Tokenizer(path)
    path.write_text(text)
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        Tokenizer(path)


def matched(case, chunks):
    matcher = StopMatcher(case["stop"], include_match=case["include_stop_str_in_output"])
    text = "".join(matcher.feed(chunk) for chunk in chunks)
    if matcher.matched is None:
        text += matcher.flush()
    return text, matcher.matched


@pytest.mark.parametrize("case", STOPS, ids=[case["id"] for case in STOPS])
def test_stop_vector_under_every_cut(case):
    whole = "".join(case["chunks"])
    partitions = [case["chunks"], [whole], list(whole)]
    partitions += [[whole[:cut], whole[cut:]] for cut in range(len(whole))]
    for chunks in partitions:
        assert matched(case, chunks) == (case["expect"]["content"], case["expect"]["matched"])


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    include=st.booleans(),
)
def test_the_match_that_ends_first_wins(text, stops, cuts, include):
    edges = sorted(min(cut, len(text)) for cut in cuts)
    chunks = [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]
    case = {"stop": stops, "include_stop_str_in_output": include}
    expected = (text, None)
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            expected = (text[: end if include else end - len(longest)], longest)
            break
    assert matched(case, chunks) == expected
    assert matched({**case, "stop": stops[::-1]}, chunks) == expected
