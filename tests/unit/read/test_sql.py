"""SQL filters compared with a broker and a naive evaluator, and invalid expressions."""

import gzip
import importlib
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inside import forget_sql_parser
from timerstore import ConfigError, MessageError
from timerstore._engine.read import sql
from timerstore._engine.read.sql import DEPTH_MAX, parse_sql

VERDICTS = Path(__file__).resolve().parents[2] / "fixtures" / "sql" / "verdicts.jsonl.gz"
SAID = {True: "yes", False: "no", None: "unknown"}


def said(text: str, properties: dict[str, str]) -> str:
    try:
        return SAID[parse_sql(text).evaluate(properties)]
    except MessageError:
        return "refused"


def test_broker_gives_the_same_result_or_fails() -> None:
    with gzip.open(VERDICTS, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 1200
    for row in rows:
        got = said(row["sql"], row["properties"])
        if row["broker"] == "failed":
            assert got != "refused", row
        else:
            assert got == row["broker"], row


PROPERTIES = {
    "a": "5", "f": "5.5", "s": "abc", "t": "true", "e": "1e3", "zero": "-0.0", "d": "5d",
    "blank": " 5 ", "nan": "NaN", "infinity": "Infinity", "hex": "0x10",
    "big": "9223372036854775808",
}  # fmt: skip
DIFFERENCES = [
    # sql, what a broker says of PROPERTIES (5.4.0), what we say
    ("f > 5", "failed", "yes"),  # it reads the text as the literal's type, a whole number
    ("f = 5", "failed", "no"),
    ("e = 1000", "failed", "yes"),
    ("big > 5", "failed", "yes"),
    ("s > 4", "failed", "unknown"),  # one text that is no number fails the whole
    ("s > 4 OR a = 5", "failed", "yes"),
    ("NOT (s > 4)", "failed", "unknown"),
    ("hex = 16", "failed", "unknown"),
    ("blank = 5", "failed", "unknown"),
    (
        "blank = 5.0",
        "yes",
        "unknown",
    ),  # texts that Java's Double accepts in addition to decimal numbers
    ("d = 5.0", "yes", "unknown"),
    ("nan > 5.0", "yes", "unknown"),
    ("infinity > 5.0", "yes", "unknown"),
    ("'x' = m", "no", "unknown"),  # it checks only the left side for a missing property
    ("'x' <> m", "yes", "unknown"),
    ("s <> m", "yes", "unknown"),
    ("a != 5", "refused", "no"),  # != is an addition
    ("zero = 0.0", "refused", "yes"),  # it takes 0.0 for too small a number
    ("a > -9223372036854775808", "refused", "yes"),
    ("t", "no", "refused"),  # a property is never true to it, not even this one
    ("NOT t", "yes", "refused"),
    ("NOT a = 6", "no", "refused"),  # it reads (NOT a) = 6
    ("NOT s CONTAINS 'b'", "no", "refused"),
    ("a 5", "no", "refused"),  # it stops reading where it no longer understands
    ("a = 5)", "yes", "refused"),
    ("a = 5 x", "yes", "refused"),
    ("s LIKE 'a%'", "no", "refused"),
    ("a = 05", "no", "refused"),
    ("a NOT BETWEEN 9 AND 1", "yes", "refused"),
    ("a BETWEEN 9 AND -1", "no", "refused"),
    ("NULL", "unknown", "refused"),
    ("TRUE = TRUE", "yes", "refused"),
    ("(a) = 5", "yes", "refused"),
    ("(a = 5) IS NULL", "no", "refused"),
    ("1 = '1'", "yes", "refused"),
    ("'abc' CONTAINS 'b'", "yes", "refused"),
    ("+a = 5", "yes", "refused"),
    ("- -5 = a", "yes", "refused"),
]


@pytest.mark.parametrize(("text", "brokers", "ours"), DIFFERENCES)
def test_documented_differences_from_a_broker(text: str, brokers: str, ours: str) -> None:
    assert said(text, PROPERTIES) == ours != brokers


WRONG = [
    # sql, what the error says
    ("", "got its end at character 1 of ''"),
    ("  ", "got its end at character 3 of"),
    ("a >", "got its end at character 4 of 'a >'"),
    ("a", "got its end at character 2 of 'a'"),
    ("a = 5 AND AND b = 6", "got 'AND' at character 11 of"),
    ("a = 5)", "wanted the end, got ')' at character 6"),
    ("(a = 5", "wanted ), got its end at character 7"),
    ("a == 5", "got '=' at character 4"),
    ("a = 5;", "got ';' at character 6"),
    ("a = \"x\"", "got '\"'; a text is written in single quotes at character 5"),
    ("b = 'x", "got a text that does not end at character 5"),
    ("/* a = 5", "got '/' at character 1"),
    ("a\n=\nb c", "got 'c' at character 7"),
    ("\u00e4 = 5", "got '\u00e4' at character 1"),
    ("a.b = 5", "got '.' at character 2"),
    ("a = 5 \0", "at character 7"),
    ("NOT a = 5", "wanted ( | FALSE | NOT | TRUE, got 'a' at character 5"),
    ("and = 5", "got 'and' at character 1"),
    ("a IN (5)", "wanted a 'text', got '5' at character 7"),
    ("a IN ()", "wanted a 'text', got ')' at character 7"),
    ("a IN ('x',)", "wanted a 'text', got ')' at character 11"),
    ("5 IN ('x')", "wanted a property before IN at character 1"),
    ("'x' IS NULL", "wanted a property before IS NULL at character 1"),
    ("5 IS NOT NULL", "wanted a property before IS NOT NULL at character 1"),
    ("'x' not Contains 'y'", "wanted a property before CONTAINS at character 1"),
    ("a STARTSWITH b", "wanted a 'text', got 'b' at character 14"),
    ("a > 'x'", "wanted a property or a number next to > at character 5"),
    ("a <= TRUE", "wanted a property or a number next to <= at character 6"),
    ("'x' < a", "wanted a property or a number next to < at character 1"),
    ("5 = 'x'", "two constants of one kind at character 5"),
    ("5 = TRUE", "two constants of one kind at character 5"),
    ("a = NULL", "got 'NULL' at character 5"),
    ("a BETWEEN 'a' AND 'b'", "with BETWEEN at character 11"),
    ("a BETWEEN 1 AND 'b'", "with BETWEEN at character 17"),
    ("x = 1 OR a BETWEEN 2 AND 1.5", "wanted 2 to be at most 1.5 at character 20"),
    ("a = 9223372036854775808", "wanted a whole number of 64 bits, got 9223372036854775808 at"),
    ("a = -9223372036854775809L", "got -9223372036854775809 at character 5"),
    ("a = " + "9" * 5000, "wanted a whole number of 64 bits"),
    ("a = 1e309", "wanted a number that a double holds, got 1e309 at character 5"),
    ("a = -1e309", "got -1e309 at character 5"),
    ("x" * 5000 + " ? " + "y" * 5000, f"at character 5002 of '...{'x' * 59} ? {'y' * 58}...'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), WRONG)
def test_parse_error_names_its_position(text: str, what: str) -> None:
    with pytest.raises(MessageError, match=r"^sql: ") as caught:
        parse_sql(text)
    assert what in str(caught.value)


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808L", "1.7e308"])
def test_largest_numbers_are_accepted(number: str) -> None:
    assert said(f"a = {number}", {"a": number.rstrip("L")}) == "yes"


def test_numbers_are_compared_as_floats_with_a_float_and_exactly_otherwise() -> None:
    properties = {"a": "9007199254740993", "b": "9007199254740992"}  # one float, as a broker says
    assert said("a = 9007199254740992.0", properties) == "yes"
    assert said("a <= b", properties) == "yes"
    assert said("a = 9007199254740992", properties) == "no"
    assert said("a > 9007199254740992", properties) == "yes"
    assert said("a = b", properties) == "no"


def test_long_numbers_of_a_property_are_numbers() -> None:
    for digits in (39, 40, 41, 30_000):
        assert said("a > 5", {"a": "9" * digits}) == "yes"
        assert said("a < 5.5", {"a": "-" + "9" * digits}) == "yes"


def test_nesting_of_conditions_is_limited() -> None:
    def nested(depth: int) -> str:
        return "NOT " * (depth - 1) + "(a = 5)"

    assert said(nested(DEPTH_MAX), {"a": "5"}) == ("yes" if DEPTH_MAX % 2 else "no")
    with pytest.raises(MessageError, match=f"at most {DEPTH_MAX} nested conditions"):
        parse_sql(nested(DEPTH_MAX + 1))
    with pytest.raises(MessageError, match="nested conditions"):
        parse_sql("NOT " * 20_000 + "(a = 5)")
    assert said("(" * 20_000 + "a = 5" + ")" * 20_000, {"a": "5"}) == "yes"
    assert said(" OR ".join(["b = 5"] * 20_000 + ["a = 5"]), {"a": "5"}) == "yes"


def test_error_names_the_package_to_install_without_lark(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str) -> Any:
        if name == "lark":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(sql.importlib, "import_module", missing)
    forget_sql_parser()
    sql.parse_sql.cache_clear()
    with pytest.raises(ConfigError, match=r"lark.*pip install '\.\[sql\]' in a checkout"):
        parse_sql("a = 5")
    monkeypatch.undo()
    assert said("a = 5", {"a": "5"}) == "yes"


# --- a naive evaluator: yes is 1, no is 0, unknown is a half ---

NAMES = ["a", "b", "$c_1", "TAGS"]
TEXTS = ["5", "-3", "+7", "0", "5.5", ".5", "7.", "1e1", "abc", "ab", "b", "true", "False", "it's"]
LITERALS = ["5", "-3", "+7", "0", "5.5", "-.5", "7.", "1e1", "10l"]
HALF = Fraction(1, 2)
Node = tuple[str, Callable[[dict[str, str]], Fraction]]  # as SQL; its value


def as_number(text: str | None) -> Fraction | None:
    try:
        return None if text is None else Fraction(text.rstrip("lL") if text[0] != "F" else text)
    except ValueError:
        return None


def compare(sign: str, left: Any, right: Any) -> Fraction:
    if left is None or right is None:
        return HALF
    return Fraction({
        "=": left == right, "<>": left != right, "!=": left != right,
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
    }[sign])  # fmt: skip


names = st.sampled_from(NAMES)
signs = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
equals = st.sampled_from(["=", "<>", "!="])
numbers = st.sampled_from(LITERALS)
texts = st.sampled_from([*TEXTS, ""])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def comparisons(draw: st.DrawFn) -> Node:
    name, kind, no = draw(names), draw(st.integers(0, 8)), draw(st.booleans())
    word = " NOT" if no else ""

    def turned(value: Fraction) -> Fraction:
        return 1 - value if no else value

    match kind:
        case 0:
            sign, number = draw(signs), draw(numbers)
            return f"{name}{sign}{number}", lambda p: compare(
                sign, as_number(p.get(name)), as_number(number)
            )
        case 1:
            sign, number = draw(signs), draw(numbers)
            return f"{number} {sign} {name}", lambda p: compare(
                sign, as_number(number), as_number(p.get(name))
            )
        case 2:
            sign, text = draw(equals), draw(texts)
            return f"{name} {sign} {quoted(text)}", lambda p: compare(sign, p.get(name), text)
        case 3:
            other, sign = draw(names), draw(signs)
            as_is = (lambda text: text) if sign in {"=", "<>", "!="} else as_number
            return f"{name} {sign} {other}", lambda p: compare(
                sign, as_is(p.get(name)), as_is(p.get(other))
            )
        case 4:
            return f"{name} is{word} null", lambda p: turned(Fraction(name not in p))
        case 5:
            low, high = sorted((draw(numbers), draw(numbers)), key=lambda n: as_number(n) or 0)
            return f"{name}{word} Between {low} and {high}", lambda p: turned(
                min(
                    compare(">=", as_number(p.get(name)), as_number(low)),
                    compare("<=", as_number(p.get(name)), as_number(high)),
                )
            )
        case 6:
            listed = draw(st.lists(texts, min_size=1, max_size=3))
            return (
                f"{name}{word} IN({', '.join(map(quoted, listed))})",
                lambda p: turned(Fraction(p[name] in listed)) if name in p else HALF,
            )
        case 7:
            text, how = draw(texts), draw(st.sampled_from(["contains", "startswith", "endswith"]))

            def looked_for(p: dict[str, str]) -> Fraction:
                if name not in p or not text:
                    return Fraction(0)
                places = [k for k in range(len(p[name])) if p[name][k : k + len(text)] == text]
                last = len(p[name]) - len(text)
                hit = {"contains": places, "startswith": 0 in places, "endswith": last in places}
                return turned(Fraction(bool(hit[how])))

            return f"{name}{word} {how} {quoted(text)}", looked_for
        case _:
            sign, wanted = draw(equals), draw(st.booleans())
            return (
                f"{name} {sign} {wanted!s}",
                lambda p: (
                    compare(sign, p[name].casefold() == "true", wanted) if name in p else HALF
                ),
            )


def combined(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def joined(word: str, pick: Callable[..., Fraction]) -> st.SearchStrategy[Node]:
        return st.lists(parts, min_size=2, max_size=3).map(
            lambda some: (
                "(" + f" {word} ".join(text for text, _ in some) + ")",
                lambda p: pick(ask(p) for _, ask in some),
            )
        )

    return st.one_of(
        joined("AND", min),
        joined("oR", max),
        joined("/* - */and--\n", min),
        parts.map(lambda one: (f"Not({one[0]})", lambda p: 1 - one[1](p))),
        st.sampled_from([("TRUE", lambda _: Fraction(1)), ("false", lambda _: Fraction(0))]),
    )


conditions_ = st.recursive(comparisons(), combined, max_leaves=8)
properties_ = st.dictionaries(names, st.sampled_from(TEXTS))


@given(node=conditions_, properties=properties_)
def test_naive_evaluator_gives_the_same_result(node: Node, properties: dict[str, str]) -> None:
    text, ask = node
    assert said(text, properties) == {1: "yes", 0: "no", HALF: "unknown"}[ask(properties)]


@given(nodes=st.tuples(comparisons(), comparisons(), comparisons()), properties=properties_)
def test_and_binds_before_or(nodes: tuple[Node, Node, Node], properties: dict[str, str]) -> None:
    (one, ask_one), (two, ask_two), (three, ask_three) = nodes
    value = max(ask_one(properties), min(ask_two(properties), ask_three(properties)))
    for text in (f"{one} OR {two} AND {three}", f"{two} AND {three} OR {one}"):
        assert said(text, properties) == {1: "yes", 0: "no", HALF: "unknown"}[value]


@given(st.text("0123456789+-.eExX_ \n\u0663d", max_size=8) | st.floats().map(str))
def test_number_is_decimal_or_none(text: str) -> None:
    got = sql.number_of(text)
    try:
        plain = text.isascii() and not set(text) & set("_ \nd") and "n" not in text.lower()
        wanted = Fraction(text) if plain else None
    except ValueError:
        wanted = None
    assert (got is None) == (wanted is None)
    if got is not None and wanted is not None:
        assert got == (int(wanted) if isinstance(got, int) else float(text))
