"""The Spark sessions of the tests, with all their settings.

A session has two slots and three attempts per task (local[2,3]), uses UTC, and has no web page. The
JVM uses only its fast compiler. PYTHONPATH is set before the JVM starts, so that workers find this
checkout and Spark finds the data source.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.spark import java

ROOT = Path(__file__).resolve().parents[3]
AUTOLOAD = ROOT / "timerstore" / "spark" / "autoload"
_QUIET = ROOT / "tests" / "spark" / "log4j2.properties"


def missing() -> str | None:
    """Return why no Spark test can run here, or None."""
    absent = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install '.[spark]' in a checkout"
    return java.complaint()


def environment() -> dict[str, str]:
    """Return the environment variables of a process that starts a JVM.

    Its Python workers keep compiled modules, even if this process does not: each of the many
    workers would compile the package again, which takes more than a second.
    """
    path = [str(ROOT), str(AUTOLOAD), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "",
    }


def settings(scratch: Path) -> dict[str, str]:
    """Return the settings of a session, in addition to those of timerstore.spark.configure."""
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


def run_program(
    program: str, *words: str, scratch: Path, env: Mapping[str, str], timeout_s: int
) -> subprocess.CompletedProcess[str]:
    """Run a program that starts a session of its own; it reads `settings` as JSON from stdin."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        input=json.dumps(settings(scratch)),
        env=env,
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def found_by(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the program printed after "FOUND "."""
    lines = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    assert lines, done.stderr
    [line] = lines
    return line.removeprefix("FOUND ")


def start(scratch: Path, *, master: str = "local[2,3]", **more: str) -> Any:
    """Start the session of this process. `more` has settings with `__` for a dot."""
    from pyspark.sql import SparkSession

    from timerstore.spark import configure

    os.environ.update(environment())
    time.tzset()
    builder = configure(SparkSession.builder.master(master).appName("timerstore-tests"))
    given = settings(scratch) | {name.replace("__", "."): text for name, text in more.items()}
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
