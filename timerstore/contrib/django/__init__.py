"""Django Tasks in a store: a backend for `TASKS`, a worker, and a command for operators.

    TASKS = {"default": {"BACKEND": "timerstore.contrib.django.TimerStoreBackend",
                         "OPTIONS": {"url": "unix:///run/shop/tasks.sock"}}}

backend.py             TimerStoreBackend: enqueue, results, checks
options.py             its OPTIONS
store_connections.py   one connected store for each url, shared by the threads of a process
task_topics.py         the topics and the group of a backend, and levels of priorities
task_record.py         the state of a task, as the bytes of a message
task_store.py          the calls of the store, by task
task_runner.py         one attempt at a task
worker.py              the threads of a worker
processes.py           several processes of a worker
management/commands    timerstore_worker, timerstore_tasks

Raises: ConfigError if Django 6.0 or newer is not installed.
"""

from timerstore.errors import ConfigError

try:
    import django.tasks  # noqa: F401
except ModuleNotFoundError as error:
    raise ConfigError(
        "timerstore.contrib.django needs Django 6.0 or newer, which is not installed (it needs "
        "Python 3.12): pip install '.[django]' in a checkout"
    ) from error

from timerstore.contrib.django.backend import TimerStoreBackend
from timerstore.contrib.django.task_record import TaskCancelledError, WorkerLostError

__all__ = ["TaskCancelledError", "TimerStoreBackend", "WorkerLostError"]
