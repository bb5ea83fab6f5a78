"""Filters alone: first by the unit's tags code, then by the message's properties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.base.native import lib
from timerstore._engine.read.filter import TagFilter, make_filter, parse_tags
from timerstore.errors import MessageError


def java_hash(text: str) -> int:
    """Java's String.hashCode, from its definition."""
    units = text.encode("utf-16-le")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "little")) % 2**32
    return value - 2**32 if value >= 2**31 else value


def unit(tags_code: int) -> bytes:
    return (
        (4096).to_bytes(8, "big")
        + (200).to_bytes(4, "big")
        + tags_code.to_bytes(8, "big", signed=True)
    )


def may_match(one: TagFilter, tags_code: int) -> bool:
    return one.candidates(unit(tags_code)).tolist() == [0]


def matches(one: TagFilter, text: bytes) -> bool:
    return bool(one.keep(text, np.array([0, len(text)]))[0])


def text_of(tag: str | None) -> bytes:
    return b"KEYS\x01k\x02" + (f"TAGS\x01{tag}\x02".encode() if tag else b"") + b"z\x01TAGS\x02"


# "Aa" and "BB", "AaAa", "AaBB" and "BBBB" share a hash; "polygenelubricants" has the smallest.
TAGS = ["Aa", "BB", "AaAa", "AaBB", "BBBB", "a", "b", "polygenelubricants", "\U0001f600", "中文"]
some_tags = st.lists(st.sampled_from(TAGS) | st.text("ABab", min_size=1, max_size=3), min_size=1)


def test_the_hashes_that_collide_do() -> None:
    assert java_hash("Aa") == java_hash("BB")
    assert java_hash("AaAa") == java_hash("AaBB") == java_hash("BBBB")
    assert java_hash("f5a5a608") == 0
    assert java_hash("polygenelubricants") == -(2**31)


@given(wanted=some_tags, stored=st.lists(st.none() | st.sampled_from(TAGS)))
def test_candidates_are_units_with_a_matching_hash(
    wanted: list[str], stored: list[str | None]
) -> None:
    one = TagFilter(wanted, has_hashes=True)
    codes = [java_hash(tag) if tag else 0 for tag in stored]
    hashes = {java_hash(tag) for tag in wanted}
    expected = [k for k, code in enumerate(codes) if code in hashes]
    assert one.candidates(b"".join(map(unit, codes))).tolist() == expected
    assert [k for k, code in enumerate(codes) if may_match(one, code)] == expected


@given(wanted=some_tags, stored=st.lists(st.none() | st.sampled_from(TAGS)))
def test_keep_accepts_exact_tags_only(wanted: list[str], stored: list[str | None]) -> None:
    one = TagFilter(wanted, has_hashes=True)
    texts = [text_of(tag) for tag in stored]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    expected = [tag in wanted for tag in stored]
    assert one.keep(b"".join(texts), offsets).astype(bool).tolist() == expected
    assert [matches(one, text) for text in texts] == expected


@pytest.mark.parametrize("code", [-(2**31) - 1, -(2**63)])
def test_address_in_the_ext_file_passes(code: int) -> None:
    one = TagFilter(["Aa"], has_hashes=True)
    assert may_match(one, code)


@pytest.mark.parametrize("code", [-(2**31), -1, 0, 1, 2**31 - 1, 2**31 + 1, 2**63 - 1])
def test_another_code_does_not_pass(code: int) -> None:
    one = TagFilter(["Aa"], has_hashes=True)
    assert one.candidates(unit(code)).tolist() == []


def test_the_smallest_hash_is_still_a_hash() -> None:
    assert TagFilter(["Aa"], has_hashes=True).candidates(unit(-(2**31))).tolist() == []
    smallest = TagFilter(["polygenelubricants"], has_hashes=True)
    assert may_match(smallest, -(2**31))


def test_every_due_time_of_a_level_passes() -> None:
    one = TagFilter(["Aa"], has_hashes=False)
    assert one.candidates(unit(1_700_000_000_000) + unit(0)).tolist() == [0, 1]
    assert not matches(one, text_of("BB"))


def test_last_tag_that_is_not_empty_counts() -> None:
    one = TagFilter(["Aa"], has_hashes=True)
    assert matches(one, b"TAGS\x01b\x02TAGS\x01Aa\x02TAGS\x01\x02")
    assert not matches(one, b"TAGS\x01Aa\x02TAGS\x01b\x02")
    assert matches(one, b"TAGS\x01Aa")  # as brokers up to 5.1.4 end the text
    assert not matches(one, b"")
    assert not matches(one, b"TAGS\x01Aa\xff\x02")


@pytest.mark.parametrize(
    ("given_tags", "wanted"),
    [
        (None, None),
        ("", None),
        ("*", None),
        (" \t*\r\n", None),
        ("a", ["a"]),
        (" a b ||c", ["a b", "c"]),
        ("a || a", ["a", "a"]),
        ("a|b", ["a|b"]),
        ("\u00a0a", ["\u00a0a"]),  # a blank that the ancestor does not trim
    ],
)
def test_tag_expressions(given_tags: str | None, wanted: list[str] | None) -> None:
    assert parse_tags(given_tags) == wanted


@pytest.mark.parametrize(
    ("given_tags", "what"),
    [
        ("a || ", "a tag at character 5 "),
        ("||", "a tag at character 1 "),
        ("a||||b", "a tag at character 4 "),
        ("a || *", "character 6 "),
        ("a || \ud800", "surrogate"),
    ],
)
def test_invalid_tag_expressions_are_rejected(given_tags: str, what: str) -> None:
    with pytest.raises(MessageError, match=what):
        parse_tags(given_tags)


def test_tag_hash_equals_java_hash_code() -> None:
    for tag in TAGS:
        assert lib.ts_topic_hash(tag.encode(), len(tag.encode())) == java_hash(tag)


@pytest.mark.parametrize(
    ("given_tags", "what"), [(3, "got int"), (["a"], "got list"), (False, "got bool")]
)
def test_tags_that_are_no_text_are_rejected(given_tags: Any, what: str) -> None:
    route: Any = None  # it is not asked
    with pytest.raises(MessageError, match=what):
        make_filter(route, given_tags, None)
