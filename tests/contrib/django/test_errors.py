"""The errors of docs/django.md, its table of priorities, and connections that are shared."""

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")

from django.core import checks
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend
from django.utils import timezone

import timerstore
from tests.contrib.django import sample_tasks
from tests.support.django_bench import DjangoBench
from tests.support.snippets import GUIDES
from timerstore.contrib.django.options import read_options
from timerstore.contrib.django.task_topics import level_of
from timerstore.contrib.django.worker import Worker
from timerstore.errors import AccessError, ConfigError, MessageError, UnavailableError

PAGE = (GUIDES / "django.md").read_text("utf-8")


def _said(cause: str) -> str:
    """Return the quoted text in the row of the page that begins with a cause."""
    [row] = [one for one in PAGE.splitlines() if one.startswith(f"| {cause} |")]
    return re.findall(r"`([^`]*)`", row)[-1]


def _error(kind: type[Exception], call: Callable[[], Any], cause: str) -> Exception:
    """Return the error of a call, whose text is that of the page."""
    with pytest.raises(kind, match=re.escape(_said(cause))) as found:
        call()
    return found.value


def _enqueue() -> Any:
    return sample_tasks.add.enqueue(1, 2)


def test_server_is_absent(project: DjangoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, asked = timerstore.connect, []

    def connect_soon(url: str, **options: Any) -> Any:
        asked.append(options["retry_for"])
        return connect(url, **(options | {"retry_for": 0.1}))

    monkeypatch.setattr(timerstore, "connect", connect_soon)
    with (
        project.configured(url="unix:///nowhere/tasks.sock"),
        pytest.raises(UnavailableError) as found,
    ):
        _enqueue()
    assert asked == [10.0]
    assert str(found.value).replace("0.1 s", "10 s").startswith(_said("the server is absent"))


@pytest.mark.skipif(os.getuid() != 0, reason="NOT RUN: needs root, to become another user")
@pytest.mark.parametrize(
    ("mode", "kind", "cause"),
    [
        (0o600, UnavailableError, "the socket belongs to another user"),
        (
            0o666,
            AccessError,
            "the socket is accessible, but the server was started for other users",
        ),
    ],
)
def test_socket_of_another_user(
    project: DjangoBench, tmp_path: Path, mode: int, kind: type[Exception], cause: str
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and "pytest" in str(folder):
            folder.chmod(0o755)
    (tmp_path / "tasks.sock").chmod(mode)
    os.seteuid(65_534)
    try:
        error = _error(kind, _enqueue, cause)
    finally:
        os.seteuid(0)
    assert not getattr(error, "retryable", False)


def test_extra_is_not_installed(project: DjangoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("timerstore.net.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with project.configured(url="unix:///nowhere/tasks.sock"):
        _error(ConfigError, _enqueue, "the extra is not installed")


def test_invalid_names_and_times(project: DjangoBench) -> None:
    add = sample_tasks.add
    _error(InvalidTask, lambda: add.using(queue_name="other"), "the queue is not one of `QUEUES`")
    with project.configured(QUEUES=[]):
        _error(
            InvalidTask, lambda: add.using(queue_name="x" * 91), "the name of a queue is too long"
        )
    late = add.using(run_after=timezone.now().replace(year=2099))
    with pytest.raises(MessageError):
        late.enqueue(1, 2)


def test_token_file_that_is_no_text_is_named(project: DjangoBench, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff")
    with (
        project.configured(url="tls://localhost:1", token_file=str(file)),
        pytest.raises(ConfigError, match=r"token_file: wanted a text, got other bytes; at .*token"),
    ):
        _enqueue()


def test_token_file_is_missing(project: DjangoBench, tmp_path: Path) -> None:
    with project.configured(url="tls://localhost:1", token_file=str(tmp_path / "token")):
        _error(ConfigError, _enqueue, "the token file is missing")


def test_options_that_are_no_dictionary_are_named() -> None:
    [problem, *_] = read_options(["url"]).problems
    assert problem == "wanted a dictionary, got ['url']"


def test_invalid_option_is_the_same_text_in_both_places(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=0):
        with pytest.raises(InvalidTaskBackend) as found:
            _enqueue()
        texts = [one.msg for one in checks.run_checks() if one.id == "timerstore.E001"]
    assert texts == [str(found.value)]


def test_table_of_priorities() -> None:
    [heads] = [one for one in PAGE.splitlines() if one.startswith("| priority |")]
    ranges = [tuple(map(int, one.split(" to "))) for one in heads.strip("| ").split(" | ")[1:]]
    assert [(level_of(low), level_of(high)) for low, high in ranges] == [
        (level, level) for level in range(10)
    ]
    assert [low for low, _ in ranges[1:]] == [high + 1 for _, high in ranges[:-1]]


# --- connections and workers ---


def test_threads_share_a_connection_that_can_be_opened_again(project: DjangoBench) -> None:
    stores: list[Any] = []

    def note() -> None:
        stores.append((task_backends["default"], project.tasks.store))

    for _ in range(3):
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    assert len({id(backend) for backend, _ in stores}) == 3
    assert len({id(store) for _, store in stores}) == 1
    project.backend.close()
    assert project.tasks.store is not stores[0][1]
    assert _enqueue().enqueued_at is not None


def test_error_that_cannot_pass_ends_the_worker(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_named: Any) -> Any:
        raise AccessError("the server does not accept this user")

    monkeypatch.setattr(project.tasks.store, "receive", refuse)
    with pytest.raises(AccessError, match="does not accept"):
        Worker(project.backend, ["default"], 2).run(10)
