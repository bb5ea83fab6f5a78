"""Evaluate the condition of an SQL filter on the properties of a message: true, false or unknown.

The semantics are those of a RocketMQ broker, whose results are recorded in tests/fixtures/sql.

Thread safety: any thread; a condition is immutable.
Invariants:
    1. A comparison is unknown (None) if its property is missing, or if the property's text is not a
       number and is compared with one.
    2. NOT of unknown is unknown. AND and OR are unknown if their other parts do not decide them.
    3. A message passes only if the whole condition is true.
See also: docs/decisions/0006-index-and-queries.md, for the differences from a broker.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Properties = Mapping[str, str]
Number = int | float
Evaluate = Callable[[Properties], bool | None]

_NUMBER = re.compile(
    r"[+-]?(?:([0-9]+)|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?)"
)
_EXACT_DIGITS_MAX = 40  # more than any literal has; int() of thousands of digits is slow or fails

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class SqlCondition(NamedTuple):
    """One condition, and the depth of the conditions nested in it."""

    evaluate: Evaluate
    depth: int = 1


def number_of(text: str) -> Number | None:
    """Return the decimal number in a property's text, or None if the text is not a number."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    return int(text) if found[1] and len(text) <= _EXACT_DIGITS_MAX else float(text)


def constant(value: bool) -> SqlCondition:
    """Return the condition TRUE or FALSE."""
    return SqlCondition(lambda _properties: value)


def all_of(parts: Sequence[SqlCondition]) -> SqlCondition:
    """Return AND: false if a part is false, otherwise unknown if a part is unknown."""
    evaluators = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> bool | None:
        combined: bool | None = True
        for one in evaluators:
            result = one(properties)
            if result is False:
                return False
            if result is None:
                combined = None
        return combined

    return SqlCondition(evaluate, _depth_around(parts))


def any_of(parts: Sequence[SqlCondition]) -> SqlCondition:
    """Return OR: true if a part is true, otherwise unknown if a part is unknown."""
    evaluators = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> bool | None:
        combined: bool | None = False
        for one in evaluators:
            result = one(properties)
            if result is True:
                return True
            if result is None:
                combined = None
        return combined

    return SqlCondition(evaluate, _depth_around(parts))


def negated(part: SqlCondition) -> SqlCondition:
    """Return NOT."""
    inner = part.evaluate

    def evaluate(properties: Properties) -> bool | None:
        result = inner(properties)
        return None if result is None else not result

    return SqlCondition(evaluate, _depth_around([part]))


def _depth_around(parts: Sequence[SqlCondition]) -> int:
    return 1 + max(part.depth for part in parts)


def is_missing(name: str) -> SqlCondition:
    """Return IS NULL."""
    return SqlCondition(lambda properties: name not in properties)


def text_is(name: str, sign: str, text: str) -> SqlCondition:
    """Return a property = or <> a text, compared character by character."""
    compare = _COMPARE[sign]

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare(value, text)

    return SqlCondition(evaluate)


def boolean_is(name: str, sign: str, wanted: bool) -> SqlCondition:
    """Return a property = or <> TRUE or FALSE; only the text "true", in any case, is true."""
    compare = _COMPARE[sign]

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare(value.lower() == "true", wanted)

    return SqlCondition(evaluate)


def number_is(name: str, sign: str, number: Number) -> SqlCondition:
    """Return a property compared with a number, as floats if it has a point or an exponent."""
    compare, is_float = _COMPARE[sign], isinstance(number, float)

    def evaluate(properties: Properties) -> bool | None:
        value = number_of(properties.get(name, ""))
        if value is None:
            return None
        return compare(float(value) if is_float else value, number)

    return SqlCondition(evaluate)


def properties_are(left: str, sign: str, right: str) -> SqlCondition:
    """Return two properties compared: as texts by = and <>, otherwise as floats."""
    compare, is_text = _COMPARE[sign], sign in {"=", "<>"}

    def evaluate(properties: Properties) -> bool | None:
        texts = properties.get(left), properties.get(right)
        if texts[0] is None or texts[1] is None:
            return None
        if is_text:
            return compare(*texts)
        first, second = number_of(texts[0]), number_of(texts[1])
        if first is None or second is None:
            return None
        return compare(float(first), float(second))

    return SqlCondition(evaluate)


def one_of(name: str, texts: Sequence[str], *, inside: bool) -> SqlCondition:
    """Return IN or NOT IN."""
    listed = frozenset(texts)

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in listed) is inside

    return SqlCondition(evaluate)


_SEARCH: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def searched(name: str, how: str, text: str, *, inside: bool) -> SqlCondition:
    """Return CONTAINS, STARTSWITH or ENDSWITH, or NOT of it.

    As in a broker, it is false, not unknown, for a missing property and for an empty text.
    """
    search = _SEARCH[how]

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return bool(value and text) and search(value or "", text) is inside

    return SqlCondition(evaluate)


def numbers_are(left: Number, sign: str, right: Number) -> SqlCondition:
    """Return two constant numbers compared."""
    return constant(_COMPARE[sign](left, right))


def texts_are(left: str, sign: str, right: str) -> SqlCondition:
    """Return two constant texts compared."""
    return constant(_COMPARE[sign](left, right))
