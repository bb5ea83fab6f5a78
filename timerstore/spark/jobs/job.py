"""The base of all jobs: common options, session, progress messages, report and exit status.

Thread safety: runs on the caller's thread.
Invariants:
    1. Exit status 0 is success, 2 a failed check, 1 an error or a wrong argument.
    2. No sparkContext is used, so that every job works with Spark Connect.
    3. An active session is used and left running. A session created here is stopped.
    4. The report is JSON. It is written to a temporary file and renamed, so it is never partial.
Raises: nothing. An exception in a job becomes one message and exit status 1; `--debug` shows the
    traceback.
"""

import dataclasses
import importlib
import io
import json
import os
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.printing import note
from timerstore._engine.buckets import BucketUrl, location_of
from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.spark.jobs.names import JOBS
from timerstore.spark.locations import local_path
from timerstore.spark.session import SETTINGS, register, use_this_python

FINE, ERROR, CHECK_FAILED = 0, 1, 2
_OUTCOMES = {FINE: "fine", ERROR: "error", CHECK_FAILED: "check failed"}
_OF_A_SESSION = "spark.sql."
_ERROR_LINES_MAX = 12  # of a Spark error; the rest is its stack trace

_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception): )", re.MULTILINE)

_HEADING = re.compile(r"\n\n(?:Thread safety|Locking|Invariants|Raises|On-disk format|See also):")

Args = TypeVar("Args")


@dataclass(frozen=True, slots=True)
class Common:
    """The options of every job."""

    master: str | None = None
    remote: str | None = None
    conf: tuple[str, ...] = ()
    report: Path | None = None
    run_id: str = ""
    quiet: bool = False
    debug: bool = False


class Location(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """The type of every option that names a file or directory: see timerstore/spark/locations.py.

    Its value is an absolute path, because workers run in other directories.
    """

    name = "path"

    def __init__(self, *, as_text: bool = False, or_bucket: bool = False) -> None:
        self._as_text = as_text
        self._or_bucket = or_bucket

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str | BucketUrl:
        """Parse a location. A wrong one is a wrong argument, and no session is started."""
        if isinstance(value, Path | BucketUrl):
            return value
        what = "" if param is None else param.opts[0]
        try:
            if self._or_bucket and isinstance(bucket := location_of(what, value), BucketUrl):
                return str(bucket) if self._as_text else bucket
            found = absolute_path(what, local_path(what, value))
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error
        return str(found) if self._as_text else found


PLACE = Location(as_text=True)
FOLDER = Location()
TARGET = Location(or_bucket=True)
"""Where a job writes: a directory or a bucket."""
STORE = Location(as_text=True, or_bucket=True)
"""What a job reads: a store, shards, a backup in a bucket, or Parquet of a folder or a bucket."""

COMMON_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["--master"], help="Spark master, as local[2]; default: of spark-submit, or local[*]."
    ),
    click.Option(["--remote"], help="A Spark Connect server, as sc://host:15002."),
    click.Option(["--conf"], multiple=True, metavar="K=V", help="A Spark setting; repeatable."),
    click.Option(["--report"], type=FOLDER, help="Write all figures to this file as JSON."),
    click.Option(
        ["--run-id"],
        default="",
        help="Run id; repeating a run with the same id does nothing twice.",
    ),
    click.Option(["--quiet"], is_flag=True, help="Print no progress messages."),
    click.Option(["--debug"], is_flag=True, help="Print the traceback of an error."),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run, and one sentence for each failed check."""

    figures: Mapping[str, Any]
    problems: tuple[str, ...] = ()


class Run(NotCopyable):
    """One run of a job: its id, its progress messages, and its session, created on first use."""

    def __init__(self, name: str, common: Common) -> None:
        self.name = name
        self.common = common
        self.run_id = common.run_id or f"{name}-{uuid.uuid4().hex[:12]}"
        self._made: SparkSession | None = None
        self._session: SparkSession | None = None
        self._began = time.monotonic()

    @property
    def spark(self) -> SparkSession:
        """The active session, or a new one with the common options."""
        if self._session is None:
            active = SparkSession.getActiveSession()
            if active is None:
                self.tell("starting a Spark session")
                self._made = make_session(self.name, self.common)
            self._session = active or self._made
            assert self._session is not None, "one of the two"
            register(self._session)
        return self._session

    def tell(self, text: str) -> None:
        """Print a progress message to standard error."""
        if not self.common.quiet:
            note(f"{time.monotonic() - self._began:7.1f} s  {self.name}: {text}")

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop the session if this run created it."""
        if self._made is not None:
            self._made.stop()
            self._made = self._session = None


def make_session(name: str, common: Common) -> SparkSession:
    """Create a session in UTC whose workers run this Python over Unix sockets."""
    use_this_python()
    builder = SparkSession.builder.appName(f"timerstore-{name}")
    if common.master:
        builder = builder.master(common.master)
    if common.remote:
        _check_connect()
        builder = builder.remote(common.remote)
    show = str(sys.stderr.isatty() and not common.quiet).lower()
    settings = {**SETTINGS, "spark.ui.showConsoleProgress": show}
    if common.remote:  # a running server accepts no launch settings
        settings = {key: value for key, value in settings.items() if key.startswith(_OF_A_SESSION)}
    settings |= parse_settings(common.conf)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _check_connect() -> None:
    """Raise ConfigError without the packages of Spark Connect: pyspark itself would exit with 0."""
    for name in ("grpc", "grpc_status"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"--remote needs {name}, which is not installed: pip install '.[connect]' in a "
                "checkout"
            ) from error


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` texts. Raise ConfigError, which lists all invalid ones."""
    wrong = [one for one in given if not one.partition("=")[0].strip() or "=" not in one]
    if wrong:
        raise ConfigError([f"--conf: wanted KEY=VALUE, got {one!r}" for one in wrong])
    return {key.strip(): value for key, _, value in (one.partition("=") for one in given)}


@dataclass(frozen=True, slots=True)
class Job(Generic[Args]):
    """The name, options and work function of a job. `JOB.main` is its `main(argv)`."""

    name: str
    args: type[Args]
    work: Callable[[Run, Args], Outcome]
    options: tuple[click.Parameter, ...]

    @property
    def command(self) -> click.Command:
        """The click command. Its help is the job's module docstring up to the first heading."""
        module = sys.modules[self.work.__module__]
        text = _HEADING.split(module.__doc__ or JOBS[self.name])[0]
        return click.Command(
            self.name,
            params=[*self.options, *COMMON_OPTIONS],
            callback=self._call,
            help=text,
            short_help=JOBS[self.name],
            context_settings={"max_content_width": 100, "show_default": True},
        )

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run with these arguments, or those of the process. Return the exit status."""
        return run_command(self.command, f"timerstore-spark {self.name}", argv)

    def _call(self, **given: Any) -> int:
        own = {one.name for one in dataclasses.fields(Common)}
        common = Common(**{key: value for key, value in given.items() if key in own})
        args = self.args(**{key: value for key, value in given.items() if key not in own})
        run = Run(self.name, common)
        try:
            outcome = self.work(run, args)
            status = CHECK_FAILED if outcome.problems else FINE
        except Exception as error:  # noqa: BLE001 - becomes a message and a status
            if common.debug:
                traceback.print_exc()
            outcome = Outcome({}, (describe(error),))
            status = ERROR
        finally:
            run.close()
        for problem in outcome.problems:
            note(f"timerstore-spark {self.name}: {problem}")
        if common.report is not None:
            write_report(common.report, report_of(run, args, outcome, status))
        return status


def run_command(command: click.Command, name: str, argv: Sequence[str] | None) -> int:
    """Run a click command. Return its exit status, which is 1 for wrong arguments."""
    try:
        answer = command.main(
            args=None if argv is None else list(argv), prog_name=name, standalone_mode=False
        )
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        note(shown.getvalue().removesuffix("\n"))
        return ERROR
    except click.Abort:
        return ERROR
    return answer if isinstance(answer, int) else FINE


def describe(error: BaseException) -> str:
    """Return one readable message. Of a Spark error, keep only the informative lines."""
    if isinstance(error, TimerStoreError):
        return str(error)
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark did not start; it needs Java 17 or newer in PATH or JAVA_HOME"
    if isinstance(error, PySparkException) or "Py4J" in type(error).__name__:
        in_worker = list(_RAISED.finditer(text))
        if in_worker:  # raised in a worker: the message follows the traceback
            return text[in_worker[-1].start(1) :].split(" SQLSTATE:")[0].strip()
        lines = [line for line in text.splitlines() if line.strip()]
        text = "\n".join(lines[:_ERROR_LINES_MAX])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def report_of(run: Run, args: Any, outcome: Outcome, status: int) -> dict[str, Any]:
    """Return the contents of the report."""
    return {
        "job": run.name,
        "run_id": run.run_id,
        "outcome": _OUTCOMES[status],
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
        "args": dataclasses.asdict(args),
        "problems": list(outcome.problems),
        "figures": dict(outcome.figures),
    }


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Replace the report atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    temporary.replace(path)


def need_there(*paths: str) -> None:
    """Raise ConfigError if a path does not exist. A bucket is checked when it is read."""
    missing = [
        one
        for one in paths
        if not isinstance(location_of("path", one), BucketUrl) and not Path(one).exists()
    ]
    if missing:
        raise ConfigError([f"{one}: no such file or directory" for one in missing])
