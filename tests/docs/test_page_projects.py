"""The complete projects of the pages on FastAPI and on pytest run as they are printed.

That of the page on Django runs in tests/contrib/django/test_site.py.
"""

import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import timerstore
import timerstore.net
from tests.support.bench import NOW, small
from tests.support.command_line import environment
from tests.support.page_project import (
    Processes,
    request,
    wait_for_server,
    wait_until,
    write_project,
)
from timerstore.testing import ManualClock


def test_project_of_the_page_on_fastapi(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="NOT RUN: fastapi is not installed")
    pytest.importorskip("uvicorn", reason="NOT RUN: uvicorn is not installed")
    files = write_project("fastapi.md", tmp_path, {"/run/shop": str(tmp_path)})
    assert files == ["shop.py", "worker.py"]
    web = tmp_path / "web.sock"
    clock = ManualClock(NOW)
    processes = Processes(tmp_path)
    with (
        timerstore.open(tmp_path / "store", small(), clock=clock) as store,
        timerstore.net.serve(store, socket=tmp_path / "orders.sock"),
    ):
        try:
            words = ["uvicorn", "shop:app", "--uds", str(web), "--log-level", "warning"]
            processes.start("web", [sys.executable, "-m", *words])
            processes.start("worker", [sys.executable, "worker.py"])
            wait_for_server(web)
            handles = [request(web, "POST", f"/orders/{k}")[1]["handle"] for k in range(2)]
            paid = f"/orders/{quote(handles[0])}"
            assert request(web, "DELETE", paid) == (200, {"closing": "CANCELLED"})
            assert request(web, "DELETE", paid) == (200, {"closing": "ALREADY_CANCELLED"})
            status, answer = request(web, "DELETE", "/orders/none")
            assert (status, answer["detail"][:7]) == (422, "handle:")
            clock.advance(1_800_000)
            wait_until(lambda: processes.log("worker"), "the worker closes no order")
            assert processes.log("worker") == "closed close 1\n"
            assert request(web, "DELETE", f"/orders/{quote(handles[1])}") == (
                200,
                {"closing": "ALREADY_DELIVERED"},
            )
        finally:
            processes.stop()
    assert processes.log("web") == ""


def test_project_of_the_page_on_pytest(tmp_path: Path) -> None:
    files = write_project("testing.md", tmp_path, {})
    assert files == ["reminders.py", "conftest.py", "test_reminders.py"]

    def tested() -> str:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    assert "2 passed" in tested()
    code = tmp_path / "reminders.py"
    code.write_text(code.read_text().replace("(7, 30)", "(8, 30)"))
    assert "2 failed" in tested()
