"""Configure Spark sessions for timerstore, and register the data source."""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

SETTINGS = {
    # Halves the cost of a Python task (measured: 22 instead of 53 ms). Read at launch only.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
_WORKER_PYTHON = "PYSPARK_PYTHON"
_FOUND_BY_SPARK = "pyspark_timerstore"


def configure(builder: Any) -> Any:
    """Apply the recommended settings to a `SparkSession.builder`, and return the builder.

    Its sessions know `format("timerstore")`. Workers run the Python of this process; to choose
    another one, set the environment variable PYSPARK_PYTHON before.
    """
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    use_this_python()
    for method in ("getOrCreate", "create"):
        setattr(builder, method, _registering(getattr(builder, method)))
    return builder


def use_this_python() -> None:
    """Let workers run the Python of this process, unless PYSPARK_PYTHON is set.

    Spark's default is `python3` in PATH, which has no pyarrow if a virtual environment is not
    activated.
    """
    os.environ.setdefault(_WORKER_PYTHON, sys.executable)


def register(spark: Any) -> None:
    """Register `format("timerstore")` in a session that does not find it by itself.

    Raises:
        ImportError: pyspark or pyarrow is not installed.
    """
    try:
        module = importlib.import_module("timerstore.spark.datasource")
    except ImportError as error:
        raise ImportError(
            f"Spark needs pyspark and pyarrow ({error}): pip install '.[spark]' in a checkout"
        ) from error
    spark.dataSource.register(module.TimerStoreDataSource)


def _registering(start: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that starts a session, and registers the source if Spark does not find it.

    Spark looks for modules in the folders of sys.path. An editable install has none there. Where
    Spark finds the source, registering it again would only log a warning.
    """

    def registered() -> Any:
        session = start()
        if not any(one.name == _FOUND_BY_SPARK for one in pkgutil.iter_modules()):
            register(session)
        return session

    return registered
