"""The page Errors has the cause and the remedy of each error; every name in a remedy exists."""

import inspect
import re
from dataclasses import fields

import pytest

import timerstore
from tests.support.snippets import GUIDES, ROOT
from timerstore import errors, net
from timerstore.cli.command import COMMANDS, cli
from timerstore.cli.exits import report_of
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_errors import CLASSES
from timerstore.store import TimerStore

TEXT = (GUIDES / "errors.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
CALLS = {
    name: getattr(TimerStore, name)
    for name in dir(TimerStore)
    if not name.startswith("_") and callable(getattr(TimerStore, name))
}
ARGUMENTS = {
    argument
    for call in (timerstore.open, timerstore.connect, net.serve, *CALLS.values())
    for argument in inspect.signature(call).parameters
}
LIMITS = {one.name for one in fields(ServerLimits)}
OTHERS = {"--token-file", "ulimit -n", '"id"'}


def test_page_has_a_section_for_each_error() -> None:
    assert sorted(SECTIONS) == sorted(CLASSES)


def test_errors_and_reports_of_commands_lead_to_the_page() -> None:
    address = "timerstore/docs/errors.md#lockederror"
    assert (ROOT / address.partition("#")[0]).samefile(GUIDES / "errors.md")
    error = errors.LockedError("x")
    assert report_of(error).lines()[-1] == f"  see    {address}"
    assert report_of(error).as_json()["see"] == address
    assert "see" not in report_of(ValueError("x")).as_json()


@pytest.mark.parametrize("name", SECTIONS)
def test_section_has_cause_and_remedy(name: str) -> None:
    assert re.fullmatch(r"\n\*\*Cause\.\*\* .+\n\n\*\*Remedy\.\*\* .+\n\n?", SECTIONS[name])


def _exists(text: str) -> bool:
    """Return whether it is a command, a function, a setting or an argument."""
    word, _, rest = text.partition(" ")
    if word == "timerstore":
        options = {option for one in cli.params for option in one.opts}
        return rest.split()[0] in {*COMMANDS, *options}
    if word.startswith("timerstore."):
        found: object = timerstore
        for part in word.split(".")[1:]:
            found = getattr(found, part, None)
        return callable(found)
    if word.startswith("StoreConfig."):
        return word.partition(".")[2] in {one.name for one in fields(timerstore.StoreConfig)}
    return text in OTHERS or word.partition("=")[0] in {*CALLS, *ARGUMENTS, *LIMITS}


@pytest.mark.parametrize("name", SECTIONS)
def test_names_in_a_remedy_exist(name: str) -> None:
    remedy = SECTIONS[name].split("**Remedy.**")[1]
    named = re.findall(r"`([^`]+)`", remedy)
    assert [one for one in named if not _exists(one)] == []
    assert named


@pytest.mark.parametrize(
    "text", ["timerstore gone PATH", "timerstore.gone", "StoreConfig.gone", "gone"]
)
def test_name_that_does_not_exist_is_found(text: str) -> None:
    assert not _exists(text)


def test_table_has_what_the_classes_and_the_command_line_have() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| (yes|no) \| (\d+)", TEXT, re.MULTILINE)
    assert rows == [
        (name, name.lower(), "yes" if kind.retryable else "no", str(int(report_of(kind("x")).code)))
        for name, kind in sorted(CLASSES.items())
    ]
