"""Settings: defaults, ranges, errors."""

import ast
import dataclasses
import inspect
import itertools

import pytest

from timerstore.errors import ConfigError
from timerstore.types import config
from timerstore.types.config import StoreConfig

SMALL = {
    "commit_log_segment_bytes": 16_384,
    "wheel_slot_count": 128,
    "timer_log_segment_bytes": 4096,
    "queue_segment_bytes": 200,
    "message_bytes_max": 4096,
}


def test_defaults_are_those_of_rocketmq():
    one = StoreConfig()
    assert one.record_bytes_max == 4_194_304 + 65_536
    assert one.roll_slots == 172_800
    assert one.store_address == ("127.0.0.1", 10_911)


def test_small_geometry():
    one = StoreConfig(**SMALL)
    assert one.record_bytes_max == 16_384 - 16
    assert one.roll_slots == 64 - 16
    assert dataclasses.replace(one, roll_window_slots=20).roll_slots == 20


@pytest.mark.parametrize("slots", [0, 1, 604_741])
def test_roll_window_is_largest_when_it_does_not_fit(slots):
    assert StoreConfig(roll_window_slots=slots).roll_slots == 604_740


@pytest.mark.parametrize("name", sorted(config.RANGES))
def test_config_accepts_limits_of_every_range(name):
    low, high = config.RANGES[name]
    small = {"wheel_slot_count": 128, "checkpoint_log_bytes": 4096}
    fixed = {"queue_segment_bytes": (20, (2**31 - 21) // 20 * 20), "checkpoint_log_bytes": (
        4096, 256 * config.MIB), "wheel_slot_count": (16, 64 * config.MIB)}  # fmt: skip
    for value in fixed.get(name, (low, high)):
        extra = {"precision_ms": 1} if name == "wheel_slot_count" else {}
        StoreConfig(**{**small, **extra, name: value})
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"{name}: wanted {low} to {high}, got {value}"):
            StoreConfig(**{name: value})


def test_config_error_lists_every_problem():
    with pytest.raises(ConfigError) as caught:
        StoreConfig(
            flush="later", precision_ms=0, broker_name="a b", visibility="", level_delays="1"
        )
    names = [problem.partition(":")[0] for problem in caught.value.problems]
    assert sorted(names) == ["broker_name", "flush", "level_delays", "precision_ms", "visibility"]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision_ms": True},
        {"precision_ms": 1.0},
        {"flush": None},
        {"property_crc": 1},
        {"queue_segment_bytes": 210},
        {"wheel_slot_count": 129},
        {"checkpoint_log_bytes": 2**20, "checkpoint_log_bytes_max": 2**19},
        {"precision_ms": 60_000},
        {"level_delays": " ".join(["1s"] * 65)},
        {"level_delays": "1s  5s"},
        {"store_host": "127.0.0.1"},
        {"store_host": "127.0.0.1:65536"},
        {"store_host": "127.0.0.1:" + "9" * 5000},
        {"store_host": "host:1"},
        {"store_host": "::1:80"},
        {"broker_name": ""},
    ],
)
def test_refused(changes):
    with pytest.raises(ConfigError):
        StoreConfig(**changes)


def test_ipv6_host():
    assert StoreConfig(store_host="[::1]:80").store_address == ("::1", 80)


def test_every_field_has_docstring():
    tree = ast.parse(inspect.getsource(config)).body
    body = next(one for one in tree if isinstance(one, ast.ClassDef)).body
    for one, after in itertools.pairwise(body):
        if isinstance(one, ast.AnnAssign):
            described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            assert described, ast.unparse(one)


@pytest.mark.parametrize("field", dataclasses.fields(StoreConfig), ids=lambda one: one.name)
def test_number_of_thousands_of_digits_is_a_config_error(field):
    with pytest.raises(ConfigError, match=field.name):
        StoreConfig(**{field.name: 10**5000})
