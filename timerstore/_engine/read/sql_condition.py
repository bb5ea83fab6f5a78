"""Condition: what an SQL filter asks of a message's properties; the answer is yes, no or unknown.

Data:     property texts by name. A name that is not there makes what compares it unknown (None), as
          does a text that is no number where it is compared with one.
Threads:  any; a condition never changes.
Holds:    unknown is not yes: NOT of it is unknown, AND and OR give it where the rest leaves it
          open, and a message of which the whole is unknown does not pass.
Source:   a broker's answers, tests/fixtures/sql (README there); where ours differ:
          docs/decisions/0006-index-and-queries.md.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Properties = Mapping[str, str]
Number = int | float
Ask = Callable[[Properties], bool | None]

_NUMBER = re.compile(
    r"[+-]?(?:([0-9]+)|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?)"
)
_EXACT_DIGITS_MAX = 40  # far beyond every literal; int() of thousands of digits is slow or refused

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Condition(NamedTuple):
    """One condition, and how deep others are nested in it."""

    ask: Ask
    depth: int = 1


def number_of(text: str) -> Number | None:
    """Give the number that a property's text says in decimal; None where it says none."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    return int(text) if found[1] and len(text) <= _EXACT_DIGITS_MAX else float(text)


def constant(answer: bool) -> Condition:
    """TRUE or FALSE."""
    return Condition(lambda _properties: answer)


def all_of(parts: Sequence[Condition]) -> Condition:
    """AND: no where one says no, unknown where one of the others is."""
    asks = [part.ask for part in parts]

    def ask(properties: Properties) -> bool | None:
        answer: bool | None = True
        for one in asks:
            said = one(properties)
            if said is False:
                return False
            if said is None:
                answer = None
        return answer

    return Condition(ask, _around(parts))


def any_of(parts: Sequence[Condition]) -> Condition:
    """OR: yes where one says yes, unknown where one of the others is."""
    asks = [part.ask for part in parts]

    def ask(properties: Properties) -> bool | None:
        answer: bool | None = False
        for one in asks:
            said = one(properties)
            if said is True:
                return True
            if said is None:
                answer = None
        return answer

    return Condition(ask, _around(parts))


def negated(part: Condition) -> Condition:
    """NOT."""
    inner = part.ask

    def ask(properties: Properties) -> bool | None:
        said = inner(properties)
        return None if said is None else not said

    return Condition(ask, _around([part]))


def _around(parts: Sequence[Condition]) -> int:
    return 1 + max(part.depth for part in parts)


def is_missing(name: str) -> Condition:
    """IS NULL."""
    return Condition(lambda properties: name not in properties)


def text_is(name: str, sign: str, text: str) -> Condition:
    """= or <> with a text: unit by unit."""
    compare = _COMPARE[sign]

    def ask(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare(value, text)

    return Condition(ask)


def boolean_is(name: str, sign: str, wanted: bool) -> Condition:
    """= or <> with TRUE or FALSE: "true" in any case is true, every other text is false."""
    compare = _COMPARE[sign]

    def ask(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare(value.lower() == "true", wanted)

    return Condition(ask)


def number_is(name: str, sign: str, number: Number) -> Condition:
    """A comparison with a number; with one that has a point or exponent, as floats."""
    compare, is_float = _COMPARE[sign], isinstance(number, float)

    def ask(properties: Properties) -> bool | None:
        value = number_of(properties.get(name, ""))
        if value is None:
            return None
        return compare(float(value) if is_float else value, number)

    return Condition(ask)


def properties_are(left: str, sign: str, right: str) -> Condition:
    """Two properties: as texts by = and <>, else as floats."""
    compare, is_text = _COMPARE[sign], sign in {"=", "<>"}

    def ask(properties: Properties) -> bool | None:
        texts = properties.get(left), properties.get(right)
        if texts[0] is None or texts[1] is None:
            return None
        if is_text:
            return compare(*texts)
        first, second = number_of(texts[0]), number_of(texts[1])
        if first is None or second is None:
            return None
        return compare(float(first), float(second))

    return Condition(ask)


def one_of(name: str, texts: Sequence[str], *, inside: bool) -> Condition:
    """IN or NOT IN."""
    listed = frozenset(texts)

    def ask(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in listed) is inside

    return Condition(ask)


_SEARCH: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def searched(name: str, how: str, text: str, *, inside: bool) -> Condition:
    """CONTAINS, STARTSWITH or ENDSWITH, or NOT that: no, and not unknown, for a property that is
    not there and for an empty text, as a broker has it.
    """
    search = _SEARCH[how]

    def ask(properties: Properties) -> bool | None:
        value = properties.get(name)
        return bool(value and text) and search(value or "", text) is inside

    return Condition(ask)


def numbers_are(left: Number, sign: str, right: Number) -> Condition:
    """Two constants."""
    return constant(_COMPARE[sign](left, right))


def texts_are(left: str, sign: str, right: str) -> Condition:
    """Two constants."""
    return constant(_COMPARE[sign](left, right))
