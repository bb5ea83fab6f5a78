"""Parse the SQL expression of a property filter into a condition.

    amount > 5 AND (TAGS = 'paid' OR region IN ('eu', 'us')) AND note IS NOT NULL

The grammar below is a subset of RocketMQ's SQL92; a name is the name of a property.

Thread safety: any thread.
Invariants:
    1. A broker gives the same result for an accepted expression, or fails on it.
Raises: MessageError on an expression that cannot be parsed, with the expected
tokens, the one found and its position; ConfigError if lark (timerstore[sql]) is not installed.
See also: docs/decisions/0006-index-and-queries.md, for the exceptions and for expressions that only
a broker accepts.
"""

import importlib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn

from timerstore.errors import ConfigError, MessageError

# --- sql condition ---
# Evaluate the condition of an SQL filter on the properties of a message: true, false or unknown.
#
# The semantics are those of a RocketMQ broker, whose results are recorded in tests/fixtures/sql.
#
# Thread safety: any thread; a condition is immutable.
# Invariants:
#     1. A comparison is unknown (None) if its property is missing, or if the property's text is not
#        a number and is compared with one.
#     2. NOT of unknown is unknown. AND and OR are unknown if their other parts do not decide them.
#     3. A message passes only if the whole condition is true.
# See also: docs/decisions/0006-index-and-queries.md, for the differences from a broker.


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


def combined(parts: Sequence[SqlCondition], decider: bool) -> SqlCondition:
    """Return AND, whose decider is False, or OR, whose decider is True.

    The result is the decider if a part is, otherwise unknown if a part is unknown.
    """
    evaluators = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> bool | None:
        undecided: bool | None = not decider
        for one in evaluators:
            result = one(properties)
            if result is decider:
                return decider
            if result is None:
                undecided = None
        return undecided

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


def value_meets(name: str, test: Callable[[str], bool | None]) -> SqlCondition:
    """Return a test of the text of a property; unknown if the property is missing."""

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else test(value)

    return SqlCondition(evaluate)


def text_is(name: str, sign: str, text: str) -> SqlCondition:
    """Return a property = or <> a text, compared character by character."""
    compare = _COMPARE[sign]
    return value_meets(name, lambda value: compare(value, text))


def boolean_is(name: str, sign: str, wanted: bool) -> SqlCondition:
    """Return a property = or <> TRUE or FALSE; only the text "true", in any case, is true."""
    compare = _COMPARE[sign]
    return value_meets(name, lambda value: compare(value.lower() == "true", wanted))


def number_is(name: str, sign: str, number: Number) -> SqlCondition:
    """Return a property compared with a number, as floats if it has a point or an exponent."""
    compare, is_float = _COMPARE[sign], isinstance(number, float)

    def test(text: str) -> bool | None:
        value = number_of(text)
        if value is None:
            return None
        return compare(float(value) if is_float else value, number)

    return value_meets(name, test)


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
    return value_meets(name, lambda value: (value in listed) is inside)


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


# --- sql ---


DEPTH_MAX = 64
_SHOWN = 60  # characters of a long expression shown on each side of an error
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1

# NOT is allowed before parentheses only: a broker reads NOT a = 5 as (NOT a) = 5, unlike SQL.
_GRAMMAR = r"""
start: condition
?condition: conjunction (_OR conjunction)*
?conjunction: term (_AND term)*
?term: atom
     | operand COMPARISON value                             -> compared
     | operand _IS _NULL                                    -> missing
     | operand _IS NOT _NULL                                -> present
     | operand NOT? _BETWEEN operand _AND operand           -> between
     | operand NOT? _IN "(" STRING ("," STRING)* ")"        -> one_of
     | operand NOT? (CONTAINS | STARTSWITH | ENDSWITH) STRING -> searched
?atom: "(" condition ")"
     | NOT atom                                             -> negated
     | (TRUE | FALSE)                                       -> constant
?value: operand
     | (TRUE | FALSE)                                       -> boolean
?operand: NAME                                              -> name
        | SIGN? (INT | FLOAT)                               -> number
        | STRING                                            -> text

_OR.2: /or(?![\w$])/i
_AND.2: /and(?![\w$])/i
NOT.2: /not(?![\w$])/i
_IS.2: /is(?![\w$])/i
_NULL.2: /null(?![\w$])/i
_IN.2: /in(?![\w$])/i
_BETWEEN.2: /between(?![\w$])/i
TRUE.2: /true(?![\w$])/i
FALSE.2: /false(?![\w$])/i
CONTAINS.2: /contains(?![\w$])/i
STARTSWITH.2: /startswith(?![\w$])/i
ENDSWITH.2: /endswith(?![\w$])/i
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
FLOAT.2: /([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INT.1: /0|[1-9][0-9]*l?/i
SIGN: /[+-]/
STRING: /'([^']|'')*'/
COMPARISON: /<>|!=|<=|>=|=|<|>/
COMMENT.3: /--[^\n\r]*|\/\*[^*]*\*+([^\/*][^*]*\*+)*\//
BLANK: /[ \t\n\r\f]+/
%ignore COMMENT
%ignore BLANK
"""

_WORDS = {
    "NAME": "a property",
    "INT": "a number",
    "FLOAT": "a number",
    "SIGN": "a number",
    "STRING": "a 'text'",
    "COMPARISON": "a comparison",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "$END": "the end",
}


@lru_cache(maxsize=256)
def parse_sql(text: str) -> SqlCondition:
    """Return the condition of an expression; recent ones are cached, because pulls repeat them."""
    lark, parser = _parser()
    try:
        return parser.parse(text)  # type: ignore[no-any-return]  # the result of `start`
    except lark.UnexpectedCharacters as error:
        at = error.pos_in_stream
        got = "a text that does not end" if text[at] == "'" else repr(text[at])
        hint = "; a text is written in single quotes" if text[at] == '"' else ""
        _refuse(text, at, f"got {got}{hint}")
    except lark.UnexpectedToken as error:
        names = error.accepts or error.expected
        wanted = sorted({_WORDS.get(name, name.lstrip("_")) for name in names})
        is_end = error.token.type == "$END"
        at, got = (
            (len(text), "its end") if is_end else (error.pos_in_stream, repr(str(error.token)))
        )
        _refuse(text, at, f"wanted {' | '.join(wanted)}, got {got}")
    except _Refused as refused:
        _refuse(text, *refused.args)


@lru_cache(maxsize=1)
def _parser() -> tuple[Any, Any]:
    """Return lark and the parser, loaded at first use because most stores use no SQL filter."""
    try:
        lark = importlib.import_module("lark")
    except ImportError as error:
        raise ConfigError(
            "sql: a filter in SQL needs lark, which is not installed: "
            "pip install '.[sql]' in a checkout"
        ) from error
    # basic: AND is a keyword at every position, never a property.
    return lark, lark.Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder())


class _Refused(Exception):  # noqa: N818  # never leaves this file
    """An error in an expression that the grammar accepts: its position, and the fault."""


def _refuse(text: str, at: int, what: str) -> NoReturn:
    begin, end = max(0, at - _SHOWN), at + _SHOWN
    shown = ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")
    raise MessageError(f"sql: {what} at character {at + 1} of {shown!r}")


class _Operand(NamedTuple):
    """One side of a comparison: its position, its kind, and the name or the value."""

    at: int
    kind: Literal["name", "number", "text", "boolean"]
    value: Any


class _Builder:
    """Converts each rule of the grammar, given the results of its parts."""

    def start(self, parts: list[Any]) -> SqlCondition:
        (condition,) = parts
        return condition  # type: ignore[no-any-return]  # the result of a rule

    # --- conditions of conditions ---

    def condition(self, parts: list[SqlCondition]) -> SqlCondition:
        return _shallow(combined(parts, decider=True))

    def conjunction(self, parts: list[SqlCondition]) -> SqlCondition:
        return _shallow(combined(parts, decider=False))

    def negated(self, parts: list[Any]) -> SqlCondition:
        return _shallow(negated(parts[1]))

    def constant(self, parts: list[Any]) -> SqlCondition:
        return constant(parts[0].type == "TRUE")

    # --- operands ---

    def name(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, "name", str(parts[0]))

    def text(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, "text", _unquoted(parts[0]))

    def boolean(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, "boolean", parts[0].type == "TRUE")

    def number(self, parts: list[Any]) -> _Operand:
        at, digits = parts[0].start_pos, "".join(parts)
        if parts[-1].type == "FLOAT":
            number: Number = float(digits)
            if number in {float("inf"), float("-inf")}:
                raise _Refused(at, f"wanted a number that a double holds, got {digits}")
        else:
            digits = digits.rstrip("lL")
            number = int(digits) if len(digits) <= 20 else _INT_MAX + 1
            if not _INT_MIN <= number <= _INT_MAX:
                raise _Refused(at, f"wanted a whole number of 64 bits, got {digits}")
        return _Operand(at, "number", number)

    # --- comparisons ---

    def compared(self, parts: list[Any]) -> SqlCondition:
        left, sign, right = parts[0], str(parts[1]).replace("!=", "<>"), parts[2]
        if sign not in {"=", "<>"}:
            for side in (left, right):
                if side.kind in {"text", "boolean"}:
                    raise _Refused(side.at, f"wanted a property or a number next to {sign}")
        if left.kind != "name" and right.kind == "name":
            left, sign, right = right, MIRRORED[sign], left
        if left.kind == "name":
            return _PROPERTY_IS[right.kind](left.value, sign, right.value)
        if left.kind == right.kind:
            return constant(_COMPARE[sign](left.value, right.value))
        raise _Refused(right.at, "wanted a property on one side, or two constants of one kind")

    def missing(self, parts: list[Any]) -> SqlCondition:
        return is_missing(_property_before(parts[0], "IS NULL"))

    def present(self, parts: list[Any]) -> SqlCondition:
        return negated(is_missing(_property_before(parts[0], "IS NOT NULL")))

    def between(self, parts: list[Any]) -> SqlCondition:
        value, low, high = parts[0], parts[-2], parts[-1]
        for side in (value, low, high):
            if side.kind == "text":
                raise _Refused(side.at, "wanted a property or a number with BETWEEN")
        if low.kind == high.kind == "number" and low.value > high.value:
            raise _Refused(low.at, f"wanted {low.value} to be at most {high.value}")
        ends = [self.compared([value, ">=", low]), self.compared([value, "<=", high])]
        inside = combined(ends, decider=False)
        return inside if len(parts) == 3 else negated(inside)

    def one_of(self, parts: list[Any]) -> SqlCondition:
        name = _property_before(parts[0], "IN")
        inside = parts[1].type != "NOT"
        texts = [_unquoted(token) for token in parts[1 if inside else 2 :]]
        return one_of(name, texts, inside=inside)

    def searched(self, parts: list[Any]) -> SqlCondition:
        how = str(parts[-2]).upper()
        name = _property_before(parts[0], how)
        return searched(name, how, _unquoted(parts[-1]), inside=len(parts) == 3)


_PROPERTY_IS: dict[str, Callable[[str, str, Any], SqlCondition]] = {
    "name": properties_are,
    "number": number_is,
    "text": text_is,
    "boolean": boolean_is,
}
"""The comparison of a property with an operand of a kind."""


def _property_before(operand: _Operand, what: str) -> str:
    if operand.kind != "name":
        raise _Refused(operand.at, f"wanted a property before {what}")
    return str(operand.value)


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _shallow(condition: SqlCondition) -> SqlCondition:
    if condition.depth > DEPTH_MAX:
        raise _Refused(0, f"wanted at most {DEPTH_MAX} nested conditions, got more")
    return condition
