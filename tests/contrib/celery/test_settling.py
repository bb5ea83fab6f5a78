"""When a task is acknowledged, with a real worker, and over restarts of the server."""

import signal
import time

import pytest

from tests.support.celery_plant import Plant

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("task", "leased_count"), [("early", 0), ("last", 1)])
def test_task_is_acknowledged_before_it_runs_or_after(
    plant: Plant, task: str, leased_count: int
) -> None:
    plant.worker("-c", "1")
    plant.send(task, 1, 3.0)
    plant.wait(lambda: plant.notes("began"))
    plant.wait(lambda: plant.leased_count() == leased_count)
    assert not plant.notes("ended")
    plant.wait(lambda: plant.notes("ended"))
    plant.wait(lambda: plant.leased_count() == 0)


def test_task_that_is_rejected_with_requeue_runs_again(plant: Plant) -> None:
    plant.worker("-c", "1")
    plant.send("requeue", 1)
    plant.wait(lambda: len(plant.notes("requeued")) >= 2)
    plant.wait(lambda: plant.leased_count() == 0)
    assert [one["is_again"] for one in plant.notes("requeued")] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("absent_s", [0.0, 4.0])  # the task ends after the restart, or before
def test_late_acknowledgement_counts_over_a_restart_of_the_server(
    plant: Plant, number: signal.Signals, absent_s: float
) -> None:
    plant.worker("-c", "1")
    plant.send("last", 1, 3.0)
    plant.wait(lambda: plant.notes("began"))
    plant.server.send_signal(number)
    plant.server.wait()
    time.sleep(absent_s)
    plant.serve()
    plant.wait(lambda: plant.notes("ended"))
    plant.wait(lambda: plant.leased_count() == 0)
    assert len(plant.notes("began")) == 1


def test_late_acknowledgement_counts_after_celery_connected_again(plant: Plant) -> None:
    """The server is away for so long that Celery closes its connection, and the lease stays."""
    sites = plant.folder / "sitecustomize.py"
    sites.write_text("from timerstore.contrib.celery import address\naddress._RETRY_FOR_S = 1.0\n")
    plant.worker("-c", "1")
    plant.send("last", 1, 15.0)
    plant.wait(lambda: plant.notes("began"))
    plant.kill_server()
    log = plant.folder / "log1"
    plant.wait(lambda: "1 tasks are delivered again in up to 60 s only" in log.read_text())
    plant.serve()
    plant.wait(lambda: log.read_text().count("Connected to timerstore://") >= 2)
    plant.wait(lambda: plant.notes("ended"))
    plant.wait(lambda: plant.leased_count() == 0, 20)
    assert len(plant.notes("began")) == 1
