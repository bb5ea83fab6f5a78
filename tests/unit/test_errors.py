"""The error classes and their texts."""

import inspect
import pickle

import pytest

from timerstore import errors
from timerstore.errors import CLASS_OF_CODE, TimerStoreError

CLASSES = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, TimerStoreError)
]


def test_error_classes_are_as_documented():
    bases = {one.__name__: {b.__name__ for b in one.__mro__} for one in CLASSES}
    for name in ("ConfigError", "MessageError"):
        assert {"ValueError", "TimerStoreError"} <= bases[name]
    assert "CorruptError" in bases["FormatVersionError"]
    retryable = {one.__name__ for one in CLASSES if one.retryable}
    assert retryable == {
        "BucketError",
        "BusyError",
        "ConnectionLostError",
        "FlowControlError",
        "FlushTimeoutError",
        "FullError",
        "UnavailableError",
    }


def test_each_code_has_one_class():
    assert dict(CLASS_OF_CODE) == {
        -1: errors.CorruptError,
        -2: errors.FullError,
        -3: errors.FormatVersionError,
        -4: errors.MessageError,
    }


def test_error_text_has_what_where_wanted_and_got():
    error = errors.CorruptError("record size", where="commitlog/0 offset 7", wanted=52, got=0)
    assert str(error) == "record size; at commitlog/0 offset 7; wanted 52; got 0"
    assert not error.retryable
    assert errors.CorruptError("x", retryable=True).retryable
    assert not errors.CorruptError.retryable


def test_all_problems_are_listed():
    error = errors.ConfigError(["a is wrong", "b is wrong"])
    assert error.problems == ("a is wrong", "b is wrong")
    assert str(error) == "a is wrong; b is wrong"
    assert errors.MessageError("one", got=3).problems == ("one",)


@pytest.mark.parametrize("cls", CLASSES)
def test_error_can_be_pickled(cls):
    again = pickle.loads(pickle.dumps(cls("some text", retryable=True)))
    assert type(again) is cls
    assert str(again) == "some text"
    assert again.retryable
