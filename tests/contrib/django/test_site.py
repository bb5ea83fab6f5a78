"""The project of docs/django.md under gunicorn, with real workers and a real server."""

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")
pytest.importorskip("gunicorn")

from tests.support.django_site import Site
from tests.support.page_project import wait_until

TASKS_OF_TESTS = """
import os
import time
from pathlib import Path


@task(takes_context=True)
def write(context, number):
    line = f"{number} {context.attempt} {os.getpid()}\\n"
    with Path(__file__).with_name("written").open("ab", buffering=0) as file:
        file.write(line.encode())
    return number


@task
def sleep(seconds):
    Path(__file__).with_name("sleeps").touch()
    time.sleep(seconds)
    return "slept"
"""
PAGES_OF_TESTS = """
from shop.tasks import sleep, write


def begin_sleep(request, seconds):
    return JsonResponse({"id": sleep.enqueue(seconds).id})


def write_ten(request, first):
    with transaction.atomic():
        ids = [write.enqueue(number).id for number in range(first, first + 10)]
    return JsonResponse({"ids": ids})


urlpatterns += [path("sleep/<int:seconds>", begin_sleep), path("write/<int:first>", write_ten)]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = Site(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def busy_site(site: Site) -> Site:
    """Return a site with the tasks and pages above."""
    for name, text in (("shop/tasks.py", TASKS_OF_TESTS), ("shop/urls.py", PAGES_OF_TESTS)):
        with (site.folder / name).open("a") as file:
            file.write(text)
    return site


def _written(site: Site) -> list[list[str]]:
    """Return what the tasks `write` wrote: number, attempt and process of each."""
    path = site.folder / "shop" / "written"
    return [one.split() for one in path.read_text().splitlines()] if path.exists() else []


def test_project_of_the_page(site: Site) -> None:
    site.serve()
    site.web()
    worker = site.worker()
    ids = site.get("/order/4711")
    assert site.result(ids["receipt"]) == "receipt of 4711 for a@example.org"
    assert site.get(f"/result/{ids['closing']}") == {"status": "READY", "value": None}
    assert site.told("check") == ["System check identified no issues (0 silenced)."]
    assert site.told("timerstore_tasks") == [
        "queue  deferred  ready  running  in_backoff  failed",
        "default  1  0  0  0  0",
        "emails  0  0  0  0  0",
    ]
    [line] = site.told("timerstore_tasks", "pending")
    assert line.endswith(f"  {ids['closing']}  default  shop.tasks.close_order")
    worker.terminate()
    assert worker.wait(20) == 0


@pytest.mark.more
def test_processes_share_a_directory_without_a_server(site: Site) -> None:
    site.change("shop/settings.py", "unix://", "shared://")
    site.change("shop/settings.py", "tasks.sock", "tasks.store")
    site.web()
    worker = site.worker()
    for number in range(5):
        receipt = site.get(f"/order/{number}")["receipt"]
        assert site.result(receipt) == f"receipt of {number} for a@example.org"
    worker.terminate()
    assert worker.wait(30) == 0
    receipt = site.get("/order/5")["receipt"]
    site.worker()
    assert site.result(receipt) == "receipt of 5 for a@example.org"


@pytest.mark.more
@pytest.mark.parametrize("processes", ["1", "2"])
def test_running_task_ends_before_the_worker(busy_site: Site, processes: str) -> None:
    busy_site.serve()
    busy_site.web()
    worker = busy_site.worker("--processes", processes)
    sleeping = busy_site.get("/sleep/2")["id"]
    wait_until((busy_site.folder / "shop" / "sleeps").exists, "no task runs")
    worker.send_signal(signal.SIGINT if processes == "1" else signal.SIGTERM)
    time.sleep(1.2)  # longer than a worker waits for a task
    waiting = busy_site.get("/order/1")["receipt"]
    assert worker.wait(20) == 0, busy_site.log("worker")
    assert busy_site.result(sleeping) == "slept"
    assert busy_site.get(f"/result/{waiting}")["status"] == "READY"


@pytest.mark.more
def test_worker_does_not_wait_longer_than_the_stop_timeout(busy_site: Site) -> None:
    busy_site.serve()
    busy_site.web()
    worker = busy_site.worker("--stop-timeout", "0.2")
    sleeping = busy_site.get("/sleep/100")["id"]
    wait_until((busy_site.folder / "shop" / "sleeps").exists, "no task runs")
    worker.terminate()
    assert worker.wait(20) == 1
    assert "1 tasks did not end within 0.2 s" in busy_site.log("worker")
    assert busy_site.get(f"/result/{sleeping}")["status"] == "RUNNING"


@pytest.mark.more
def test_task_of_a_killed_worker_fails_when_its_lease_ends(busy_site: Site) -> None:
    busy_site.serve()
    busy_site.web()
    worker = busy_site.worker()
    sleeping = busy_site.get("/sleep/100")["id"]
    wait_until((busy_site.folder / "shop" / "sleeps").exists, "no task runs")
    worker.kill()
    worker.wait()
    busy_site.worker()

    def has_failed() -> bool:
        return bool(busy_site.get(f"/result/{sleeping}")["status"] == "FAILED")

    wait_until(has_failed, "it does not fail", within_s=80)
    [line] = busy_site.told("timerstore_tasks", "failed")
    assert sleeping in line
    assert "WorkerLostError: worker" in line


@pytest.mark.more
def test_process_that_dies_is_started_again(busy_site: Site) -> None:
    busy_site.serve()
    busy_site.web()
    worker = busy_site.worker("--processes", "2")
    numbers = itertools.count(0, 10)
    processes: set[str] = set()

    def have_written(count: int) -> bool:
        busy_site.result(busy_site.get(f"/write/{next(numbers)}")["ids"][9])
        processes.update(process for _, _, process in _written(busy_site))
        return len(processes) >= count

    wait_until(lambda: have_written(2), "one process does not write")
    killed = processes.pop()
    os.kill(int(killed), signal.SIGKILL)
    said = f"process {killed} ended with exit code -9"
    wait_until(lambda: said in busy_site.log("worker"), "its death is not noticed")
    wait_until(lambda: have_written(3), "no process took the place of the dead one")
    worker.terminate()
    assert worker.wait(20) == 0


@pytest.mark.more
def test_worker_begins_again_when_code_changes(site: Site) -> None:
    site.change("shop/settings.py", "DEBUG = False", "DEBUG = True")
    site.serve()
    site.web()
    site.worker()
    assert site.result(site.get("/order/1")["receipt"]) == "receipt of 1 for a@example.org"
    site.change("shop/tasks.py", "receipt of", "new receipt of")

    def reloads() -> bool:
        (site.folder / "shop" / "tasks.py").touch()  # it looks once a second, first at old times
        return "tasks.py changed, reloading" in site.log("worker")

    wait_until(reloads, "it does not reload")
    assert site.result(site.get("/order/2")["receipt"]) == "new receipt of 2 for a@example.org"


@pytest.mark.more
@pytest.mark.parametrize("is_debugged", [False, True])
def test_worker_with_an_error_ends_with_one_line(site: Site, is_debugged: bool) -> None:
    site.change("shop/settings.py", "DEBUG = False", f"DEBUG = {is_debugged}")
    site.change("shop/settings.py", f"unix://{site.folder}/tasks.sock", "tls://localhost")
    assert site.worker().wait(60) == 1
    last = site.log("worker").splitlines()[-1]
    assert last.startswith("CommandError: the worker has ended: url: wanted unix:///PATH")
    assert "Traceback" not in site.log("worker")


@pytest.mark.more
def test_process_with_an_error_ends_with_one_line(site: Site) -> None:
    site.change("shop/settings.py", f"unix://{site.folder}/tasks.sock", "tls://localhost")
    site.worker("--processes", "2")
    wait_until(lambda: "ended with exit code 1" in site.log("worker"), "no process has ended")
    assert "CommandError: the worker has ended: url: wanted" in site.log("worker")
    assert "Traceback" not in site.log("worker")


# --- ten thousand tasks ---

TASKS = 10_000
KILLS = 5


@pytest.mark.more
@pytest.mark.timeout(900)
def test_tasks_run_once_while_the_server_is_killed(busy_site: Site) -> None:
    site = busy_site
    servers = [site.serve()]
    site.web()
    workers = [site.worker("--threads", "2") for _ in range(2)]
    ids: list[str] = []
    firsts = iter(range(0, TASKS, 10))

    def request() -> None:
        for first in firsts:
            ids.extend(site.get(f"/write/{first}")["ids"])

    browsers = [threading.Thread(target=request) for _ in range(4)]
    for one in browsers:
        one.start()
    for kill in range(1, KILLS + 1):
        _wait_for(site, TASKS * kill // (KILLS + 1))
        servers[-1].kill()
        servers[-1].wait()
        servers.append(site.serve())
    for one in browsers:
        one.join()
    _wait_for(site, TASKS)
    wait_until(lambda: _counts(site) == ["default  0  0  0  0  0"], "tasks are left")
    for one in workers:
        one.terminate()
        assert one.wait(30) == 0
    written = _written(site)
    assert Counter(int(number) for number, _, _ in written) == Counter(range(TASKS))
    assert {attempt for _, attempt, _ in written} == {"1"}
    assert len({process for _, _, process in written}) == 2
    assert len(set(ids)) == TASKS
    for one in ids[:: TASKS // 100]:
        assert site.get(f"/result/{one}")["status"] == "SUCCESSFUL"


def _wait_for(site: Site, count: int) -> None:
    wait_until(lambda: len(_written(site)) >= count, f"{count} tasks", 300)


def _counts(site: Site) -> list[str]:
    return site.told("timerstore_tasks")[1:]
