"""The Spark sessions of the tests: all settings stand here.

Holds:    local[2,3]: two slots, three attempts a task, as on a cluster; UTC; no web page; what a
          JVM compiles only for speed it leaves. Workers find this checkout, and the module by which
          Spark finds the data source, through PYTHONPATH, which is set before the JVM starts.
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
    """Why no Spark test can run here; None where they can."""
    absent = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install 'timerstore[spark]'"
    return java.complaint()


def environment() -> dict[str, str]:
    """What a process that starts a JVM has in its environment."""
    path = [str(ROOT), str(AUTOLOAD), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }


def settings(scratch: Path) -> dict[str, str]:
    """Settings of a session, beside those of timerstore.spark.configure."""
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
    """Start a session; one a process. `more`: settings with `__` for a dot."""
    from pyspark.sql import SparkSession

    from timerstore.spark import configure

    os.environ.update(environment())
    time.tzset()
    builder = configure(SparkSession.builder.master(master).appName("timerstore-tests"))
    given = settings(scratch) | {name.replace("__", "."): text for name, text in more.items()}
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
