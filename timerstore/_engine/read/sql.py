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
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from timerstore._engine.read import sql_condition as conditions
from timerstore._engine.read.sql_condition import Number, SqlCondition
from timerstore.errors import ConfigError, MessageError

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
        _refuse(text, refused.at, refused.what)


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
    """An error in an expression that the grammar accepts, with its position."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at
        self.what = what


def _refuse(text: str, at: int, what: str) -> NoReturn:
    begin, end = max(0, at - _SHOWN), at + _SHOWN
    shown = ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")
    raise MessageError(f"sql: {what} at character {at + 1} of {shown!r}")


class _Operand(NamedTuple):
    """One side of a comparison: its position, and one of four values."""

    at: int
    name: str | None = None
    number: Number | None = None
    text: str | None = None
    boolean: bool | None = None


class _Builder:
    """Converts each rule of the grammar, given the results of its parts."""

    def start(self, parts: list[Any]) -> SqlCondition:
        (condition,) = parts
        return condition  # type: ignore[no-any-return]  # the result of a rule

    # --- conditions of conditions ---

    def condition(self, parts: list[SqlCondition]) -> SqlCondition:
        return _shallow(conditions.any_of(parts))

    def conjunction(self, parts: list[SqlCondition]) -> SqlCondition:
        return _shallow(conditions.all_of(parts))

    def negated(self, parts: list[Any]) -> SqlCondition:
        return _shallow(conditions.negated(parts[1]))

    def constant(self, parts: list[Any]) -> SqlCondition:
        return conditions.constant(parts[0].type == "TRUE")

    # --- operands ---

    def name(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, name=str(parts[0]))

    def text(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, text=_unquoted(parts[0]))

    def boolean(self, parts: list[Any]) -> _Operand:
        return _Operand(parts[0].start_pos, boolean=parts[0].type == "TRUE")

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
        return _Operand(at, number=number)

    # --- comparisons ---

    def compared(self, parts: list[Any]) -> SqlCondition:
        left, sign, right = parts[0], str(parts[1]).replace("!=", "<>"), parts[2]
        if sign not in {"=", "<>"}:
            for side in (left, right):
                if side.text is not None or side.boolean is not None:
                    raise _Refused(side.at, f"wanted a property or a number next to {sign}")
        if left.name is None and right.name is not None:
            left, sign, right = right, conditions.MIRRORED[sign], left
        if left.name is not None:
            return _property_compared(left.name, sign, right)
        if left.number is not None and right.number is not None:
            return conditions.numbers_are(left.number, sign, right.number)
        if left.text is not None and right.text is not None:
            return conditions.texts_are(left.text, sign, right.text)
        raise _Refused(right.at, "wanted a property on one side, or two constants of one kind")

    def missing(self, parts: list[Any]) -> SqlCondition:
        return conditions.is_missing(_property_before(parts[0], "IS NULL"))

    def present(self, parts: list[Any]) -> SqlCondition:
        return conditions.negated(conditions.is_missing(_property_before(parts[0], "IS NOT NULL")))

    def between(self, parts: list[Any]) -> SqlCondition:
        value, low, high = parts[0], parts[-2], parts[-1]
        for side in (value, low, high):
            if side.text is not None:
                raise _Refused(side.at, "wanted a property or a number with BETWEEN")
        if low.number is not None and high.number is not None and low.number > high.number:
            raise _Refused(low.at, f"wanted {low.number} to be at most {high.number}")
        inside = conditions.all_of(
            [self.compared([value, ">=", low]), self.compared([value, "<=", high])]
        )
        return inside if len(parts) == 3 else conditions.negated(inside)

    def one_of(self, parts: list[Any]) -> SqlCondition:
        name = _property_before(parts[0], "IN")
        inside = parts[1].type != "NOT"
        texts = [_unquoted(token) for token in parts[1 if inside else 2 :]]
        return conditions.one_of(name, texts, inside=inside)

    def searched(self, parts: list[Any]) -> SqlCondition:
        how = str(parts[-2]).upper()
        name = _property_before(parts[0], how)
        return conditions.searched(name, how, _unquoted(parts[-1]), inside=len(parts) == 3)


def _property_compared(name: str, sign: str, right: _Operand) -> SqlCondition:
    if right.name is not None:
        return conditions.properties_are(name, sign, right.name)
    if right.number is not None:
        return conditions.number_is(name, sign, right.number)
    if right.text is not None:
        return conditions.text_is(name, sign, right.text)
    assert right.boolean is not None
    return conditions.boolean_is(name, sign, right.boolean)


def _property_before(operand: _Operand, what: str) -> str:
    if operand.name is None:
        raise _Refused(operand.at, f"wanted a property before {what}")
    return operand.name


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _shallow(condition: SqlCondition) -> SqlCondition:
    if condition.depth > DEPTH_MAX:
        raise _Refused(0, f"wanted at most {DEPTH_MAX} nested conditions, got more")
    return condition
