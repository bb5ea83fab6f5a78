"""The exit code of a command for each public error."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

import timerstore
from tests.support.command_line import CommandLine
from timerstore import TimerStore, TimerStoreError, errors
from timerstore.cli.exits import TABLE, Exit, report_of

EXITS = {
    "AccessError": Exit.ERROR,
    "BucketError": Exit.LATER,
    "BusyError": Exit.LATER,
    "ClosedError": Exit.ERROR,
    "ConfigError": Exit.ERROR,
    "ConflictError": Exit.ERROR,
    "ConnectionLostError": Exit.LATER,
    "CorruptError": Exit.NOT_SO,
    "FailedError": Exit.ERROR,
    "FlowControlError": Exit.LATER,
    "ForkedError": Exit.ERROR,
    "FormatVersionError": Exit.ERROR,
    "FullError": Exit.LATER,
    "GoneError": Exit.NOT_SO,
    "LeaseLostError": Exit.NOT_SO,
    "LockedError": Exit.LOCKED,
    "MessageError": Exit.ERROR,
    "NotPendingError": Exit.NOT_SO,
    "ProtocolError": Exit.ERROR,
    "ReadOnlyError": Exit.ERROR,
    "ReentrantCallError": Exit.ERROR,
    "ServerError": Exit.ERROR,
    "UnavailableError": Exit.LATER,
}
"""A new error needs a row here, and in timerstore/cli/exits.py if its code is not 2."""

_OPTIONAL = ("timerstore.spark", "timerstore.contrib.")
"""Packages that need one which may not be installed. They have no errors of their own."""


def _below(one: type[TimerStoreError]) -> Iterator[type[TimerStoreError]]:
    for child in one.__subclasses__():
        yield child
        yield from _below(child)


def _is_optional(package: str) -> None:
    assert package.startswith(_OPTIONAL), package


def _public_errors() -> dict[str, type[TimerStoreError]]:
    for module in pkgutil.walk_packages(timerstore.__path__, "timerstore.", _is_optional):
        if not module.name.startswith(_OPTIONAL) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {
        one.__name__: one
        for one in _below(TimerStoreError)
        if not one.__name__.startswith("_") and one.__module__.startswith("timerstore.")
    }


ERRORS = _public_errors()


def test_each_error_has_a_row() -> None:
    assert ERRORS.keys() == EXITS.keys()


def test_each_error_is_exported() -> None:
    assert ERRORS.keys() <= set(timerstore.__all__)
    assert all(one.__module__ == errors.__name__ for one in ERRORS.values())


@pytest.mark.parametrize("name", sorted(EXITS))
def test_command_that_meets_an_error_ends_with_its_code(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = ts.init()

    def fail(*_: object, **__: object) -> None:
        raise ERRORS[name]("what happened", where="a place", wanted="this", got="that")

    monkeypatch.setattr(TimerStore, "put", fail)
    answer = ts("put", path, "t", "x")
    assert (answer.code, answer.out) == (EXITS[name], "")
    assert answer.err.startswith("error: what happened\n")
    answer = ts("put", path, "t", "x", "--json")
    assert answer.code == EXITS[name]
    assert f'"error": "{name}"' in answer.err
    assert f'"exit": {int(EXITS[name])}' in answer.err


@pytest.mark.parametrize("name", sorted(EXITS))
def test_error_that_may_be_tried_again_says_so(name: str) -> None:
    error = ERRORS[name]("x")
    assert (report_of(error).code is Exit.LATER) == error.retryable
    assert not error.retryable or "again" in report_of(error).do


def test_exit_codes_match_the_documentation(ts: CommandLine) -> None:
    guide = (files("timerstore") / "docs" / "operations.md").read_text(encoding="utf-8")
    table = guide.partition("## Exit codes")[2].partition("\n## ")[0]
    rows = {
        int(code): text for code, text in re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE)
    }
    assert rows == {int(code): text for code, text in TABLE.items()}
    shown = ts.fine("--help").out
    assert all(
        re.search(rf"^ +{int(code)}  {re.escape(text)}$", shown, re.MULTILINE)
        for code, text in TABLE.items()
    )
    assert TABLE.keys() == set(Exit)


def test_bucket_that_is_missing_is_an_error() -> None:
    assert report_of(errors.BucketError("get: no such bucket", retryable=False)).code is Exit.ERROR
    assert report_of(errors.BucketError("get: no answer")).code is Exit.LATER
