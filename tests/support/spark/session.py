"""The Spark sessions of the tests, with all their settings.

A session is local[2,3]: two task slots and three attempts for each task, as on a cluster. It uses
UTC, has no web page, and skips compilation that only pays off in long runs. Workers find this
checkout, and the module by which Spark finds the data source, through PYTHONPATH, which is set
before the JVM starts.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.spark import java

ROOT = Path(__file__).resolve().parents[3]
AUTOLOAD = ROOT / "timerstore" / "spark" / "autoload"
_QUIET = ROOT / "tests" / "spark" / "log4j2.properties"


def missing() -> str | None:
    """Return the reason why Spark tests cannot run here, or None."""
    absent = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install 'timerstore[spark]'"
    return java.complaint()


def environment() -> dict[str, str]:
    """Return the environment of a process that starts a JVM."""
    path = [str(ROOT), str(AUTOLOAD), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }


def settings(scratch: Path) -> dict[str, str]:
    """Return a session's settings in addition to those of timerstore.spark.configure."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            f"-Dlog4j2.configurationFile=file:{_QUIET} -Dderby.system.home={scratch}"
        ),
    }


def start(scratch: Path, *, master: str = "local[2,3]", **more: str) -> Any:
    """Start a session, at most one in a process. `more` are settings with `__` for a dot."""
    from pyspark.sql import SparkSession

    from timerstore.spark import configure

    os.environ.update(environment())
    time.tzset()
    builder = configure(SparkSession.builder.master(master).appName("timerstore-tests"))
    given = settings(scratch) | {name.replace("__", "."): text for name, text in more.items()}
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
