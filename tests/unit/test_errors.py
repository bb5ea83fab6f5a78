"""The error classes and their texts."""

import inspect
import pickle

import pytest

import timerstore
import timerstore.net
from timerstore import errors
from timerstore.api import SingleStoreApi
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


def test_names_of_arguments_are_those_of_the_calls():
    found = {
        name
        for of in SingleStoreApi.__mro__
        for call, method in vars(of).items()
        if inspect.isfunction(method) and not call.startswith("_")
        for name in list(inspect.signature(method).parameters)[1:]
    }
    assert (found | {"time"}) - {"options", "progress"} == errors.ARGUMENT_NAMES


@pytest.mark.parametrize(
    ("problem", "arguments"),
    [
        ("delay: wanted seconds, got 'x'", ("delay",)),
        ("receipts[1]: receipt: wanted text", ("receipts",)),
        ("bodies[3] of 5: wanted bytes", ("bodies",)),
        ("topics[0]: wanted text", ("topic",)),
        ("group and topic: wanted at most 119 characters together", ("group", "topic")),
        ("queue: topic 't' has 1 queues, got 7", ("topic", "queue_id")),
        ("property 'a': wanted text as value", ("properties",)),
        ("time: wanted one of delay, deliver_at, got none", ("delay", "deliver_at")),
        ("handle: wanted text", ("receipt_or_handle",)),
        ("receive: message 5 of 't', queue 0: properties: wanted at most 5", ()),
        ("put: the message is stored, but", ()),
        ("Wanted something", ()),
    ],
)
def test_message_error_names_arguments(problem, arguments):
    assert errors.MessageError(problem).arguments == arguments


def test_arguments_are_named_once_and_in_order():
    found = errors.MessageError(["tags: a", "keys[2]: b", "tags: c", "other: d"])
    assert found.arguments == ("tags", "keys")


def test_calls_and_clients_name_the_wrong_arguments(tmp_path):
    with (
        timerstore.open(tmp_path / "store") as store,
        timerstore.net.serve(store, socket=tmp_path / "x.sock") as server,
        timerstore.connect(server.urls[0]) as remote,
    ):
        for one in (store, remote):
            with pytest.raises(errors.MessageError) as wrong:
                one.put("t", b"x", delay=-1)
            assert wrong.value.arguments == ("delay",)
            with pytest.raises(errors.MessageError) as wrong:
                one.receive("t", "g", lease=0, max_count=0, wait=-1)
            assert set(wrong.value.arguments) == {"lease", "max_count", "wait"}
