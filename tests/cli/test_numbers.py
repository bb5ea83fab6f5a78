"""Exit codes for the bounds of each number, span and time option of each command.

The options are read from the commands, so a new option needs no change here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.amounts import sample
from tests.support.answers import Answers
from tests.support.command_line import CommandLine
from timerstore.cli.command import COMMANDS, cli
from timerstore.cli.exits import Exit
from timerstore.cli.params import DUE, INSTANT, SETTING, SPAN

ANSWERS = Answers(Path(__file__).with_name("numbers.json"))
HUGE = "9" * 20
NUMBERS = ["-1", "0", "2147483648", "9223372036854775807", "9223372036854775808", HUGE,
           "9" * 5000, f"-{HUGE}", "nan", "inf", "1e400", "1.5", "", "\u0665"]  # fmt: skip
SPANS = ["-1s", "0s", "0.0000001ms", f"{HUGE}w", "9" * 400 + "d", "99999999d", "nan", "1e9s", ""]
TIMES = ["-1", "0", HUGE, "9" * 5000, "0001-01-01 00:00", "9999-12-31T23:59:59-12:00",
         "0001-01-01T00:00+12:00", "253402300799999", "99999-01-01", ""]  # fmt: skip
SETTINGS = [f"{name}={value}" for name in ("precision_ms", "wheel_slot_count", "dedupe_window_ms")
            for value in ("-1", HUGE, "9" * 30, "9" * 31, "")]  # fmt: skip

BASE: dict[str, list[str]] = {
    "init": ["NEW"], "put": ["STORE", "t", "x"], "every": ["STORE", "t", "x", "--every", "5s"],
    "get": ["STORE", "t"], "follow": ["STORE", "t", "--all", "--for", "50ms"],
    "receive": ["STORE", "t", "--group", "g"], "ack": ["STORE", "RECEIPT"],
    "nack": ["STORE", "RECEIPT"], "bury": ["STORE", "RECEIPT"], "dead-letters": ["STORE", "g"],
    "requeue": ["STORE", "g", "--all"], "extend": ["STORE", "RECEIPT"], "count": ["STORE"],
    "ls": ["STORE"], "histogram": ["STORE"], "explain": ["STORE", "HANDLE"],
    "cancel": ["STORE", "HANDLE"], "move": ["STORE", "HANDLE"],
    "pace": ["STORE", "t=5", "--drain"], "dump": ["STORE"], "verify": ["STORE"],
}  # fmt: skip
"""The other arguments of a command. For commands without a row only rejected values are tried."""
NEVER_RUN = {"bench", "demo", "ping", "serve", "top", "import", "export"}

WAITS = {"--wait", "--for"}


def values_of(kind: click.ParamType) -> list[str]:  # type: ignore[type-arg]
    if kind is SPAN:
        return SPANS
    if kind in (INSTANT, DUE):
        return TIMES
    if kind is SETTING:
        return SETTINGS
    return NUMBERS if kind.name in {"integer", "integer range", "float", "float range"} else []


def options() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for one in command.params:
            if isinstance(one, click.Option) and values_of(one.type):
                yield name, one.opts[0]


def is_refused_by_click(name: str, option: str, value: str) -> bool:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    [found] = [one for one in command.params if option in one.opts]
    try:
        found.type.convert(value, None, None)
    except click.BadParameter:
        return True
    return False


@pytest.mark.parametrize(("name", "option"), sample(options(), "options of commands"))
def test_option_bounds_have_their_exit_codes(ts: CommandLine, name: str, option: str) -> None:
    path = ts.init()
    row = ts.fine("put", path, "t", "work", "--in", "1h", "--json").row
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    [found] = [one for one in command.params if option in one.opts]
    codes = {}
    for at, value in enumerate(values_of(found.type)):
        waits = option in WAITS and value == "99999999d"
        if (name in NEVER_RUN or waits) and not is_refused_by_click(name, option, value):
            continue
        places: dict[str, Any] = {
            "STORE": path, "HANDLE": row["handle"], "RECEIPT": "g", "NEW": ts.folder / f"new{at}",
        }  # fmt: skip
        words = [places.get(one, one) for one in BASE.get(name, ["STORE"])]
        given = [f"{option}={value}"] if option.startswith("--") else [option, value]
        answer = ts(name, *words, *given)
        codes[value[:40]] = int(answer.code)
        context = f"{name} {option}={value[:40]}: {answer}"
        assert "unexpected error" not in answer.err, context
        assert "Traceback" not in answer.err, context
        if answer.code == Exit.ERROR:
            assert answer.err.startswith("error: "), context
    ANSWERS.check(f"{name} {option}", codes)


def test_count_above_64_bits_is_a_usage_error(ts: CommandLine) -> None:
    path = ts.init()
    for words in (["get", path, "t", "-n"], ["follow", path, "t", "-n"], ["dump", path, "-n"]):
        answer = ts(*words, HUGE)
        assert answer.code == Exit.ERROR
        assert f"{HUGE} is not in the range" in answer.err
