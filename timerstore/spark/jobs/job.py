"""What every job has: common options, a session, progress on standard error, a report, an exit
status.

Data:     the report is JSON, written beside its place and renamed, so that it is whole or not
          there.
Threads:  the caller's.
Holds:    (1) exit status 0 fine, 2 a check failed, 1 an error, a wrong argument too;
          (2) nothing here asks for a sparkContext, so that all of it works on Spark Connect;
          (3) a session that was there is used and left running, one that was made is stopped.
Fails:    what a job raises becomes one message and exit status 1; `--debug` shows where.
"""

import dataclasses
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

from timerstore._engine.base.owner import Owner
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.spark.jobs.names import JOBS
from timerstore.spark.session import SETTINGS, register

FINE, ERROR, CHECK_FAILED = 0, 1, 2
_OUTCOMES = {FINE: "fine", ERROR: "error", CHECK_FAILED: "check failed"}
_OF_A_SESSION = "spark.sql."
_ERROR_LINES_MAX = 12  # of Spark's errors: below come its own frames

_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception): )", re.MULTILINE)

Args = TypeVar("Args")


@dataclass(frozen=True, slots=True)
class Common:
    """Options that all jobs have."""

    master: str | None = None
    remote: str | None = None
    conf: tuple[str, ...] = ()
    report: Path | None = None
    run_id: str = ""
    quiet: bool = False
    debug: bool = False


def path(text: str) -> str:
    """An option's path made absolute, since workers stand elsewhere; a URL is Spark's to know."""
    return text if "://" in text else str(Path(text).absolute())


PLACE = path
FOLDER = click.Path(path_type=Path, resolve_path=True)

COMMON_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["--master"], help="Where to run, as local[2]; default: what submitted, or local[*]."
    ),
    click.Option(["--remote"], help="A Spark Connect server, as sc://host:15002."),
    click.Option(["--conf"], multiple=True, metavar="K=V", help="A Spark setting; may come again."),
    click.Option(["--report"], type=FOLDER, help="Write all figures there, JSON."),
    click.Option(
        ["--run-id"], default="", help="A run again under the same id does nothing twice."
    ),
    click.Option(["--quiet"], is_flag=True, help="No progress."),
    click.Option(["--debug"], is_flag=True, help="Show where an error came from."),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a run, and each check that did not hold, as a sentence."""

    figures: Mapping[str, Any]
    problems: tuple[str, ...] = ()


class Run(Owner):
    """One run of a job: its id, its session (made when it is first asked for), its voice."""

    def __init__(self, name: str, common: Common) -> None:
        self.name = name
        self.common = common
        self.run_id = common.run_id or f"{name}-{uuid.uuid4().hex[:12]}"
        self._made: SparkSession | None = None
        self._session: SparkSession | None = None
        self._began = time.monotonic()

    @property
    def spark(self) -> SparkSession:
        """The session that is active here, else one made with the common options."""
        if self._session is None:
            active = SparkSession.getActiveSession()
            self._made = None if active is not None else make_session(self.name, self.common)
            self._session = active or self._made
            assert self._session is not None, "one of the two"
            register(self._session)
        return self._session

    def tell(self, text: str) -> None:
        """Say how far it is."""
        if not self.common.quiet:
            click.echo(f"{time.monotonic() - self._began:7.1f} s  {self.name}: {text}", err=True)

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop the session if it was made here."""
        if self._made is not None:
            self._made.stop()
            self._made = self._session = None


def make_session(name: str, common: Common) -> SparkSession:
    """Begin a session in UTC, with this Python in its workers and unix sockets to them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"timerstore-{name}")
    if common.master:
        builder = builder.master(common.master)
    if common.remote:
        builder = builder.remote(common.remote)
    show = str(sys.stderr.isatty() and not common.quiet).lower()
    settings = {**SETTINGS, "spark.ui.showConsoleProgress": show}
    if common.remote:  # a server that runs takes no settings of its launch
        settings = {key: value for key, value in settings.items() if key.startswith(_OF_A_SESSION)}
    settings |= parse_settings(common.conf)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Read `key=value` texts; ConfigError names each that is none."""
    wrong = [one for one in given if not one.partition("=")[0].strip() or "=" not in one]
    if wrong:
        raise ConfigError([f"--conf: wanted KEY=VALUE, got {one!r}" for one in wrong])
    return {key.strip(): value for key, _, value in (one.partition("=") for one in given)}


@dataclass(frozen=True, slots=True)
class Job(Generic[Args]):
    """A job's name, its options, and what does the work. `JOB.main` is its `main(argv)`."""

    name: str
    args: type[Args]
    work: Callable[[Run, Args], Outcome]
    options: tuple[click.Parameter, ...]

    @property
    def command(self) -> click.Command:
        """As click has it; the help is that of the table of jobs and of the file's docstring."""
        module = sys.modules[self.work.__module__]
        text = (module.__doc__ or JOBS[self.name]).split("\n\nData:")[0]
        return click.Command(
            self.name,
            params=[*self.options, *COMMON_OPTIONS],
            callback=self._call,
            help=text,
            short_help=JOBS[self.name],
            context_settings={"max_content_width": 100, "show_default": True},
        )

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run with these arguments, or the process' own; the exit status."""
        return run_command(self.command, f"timerstore-spark {self.name}", argv)

    def _call(self, **given: Any) -> int:
        own = {one.name for one in dataclasses.fields(Common)}
        common = Common(**{key: value for key, value in given.items() if key in own})
        args = self.args(**{key: value for key, value in given.items() if key not in own})
        run = Run(self.name, common)
        try:
            outcome = self.work(run, args)
            status = CHECK_FAILED if outcome.problems else FINE
        except Exception as error:  # noqa: BLE001 - a door: it becomes a message and a status
            if common.debug:
                traceback.print_exc()
            outcome = Outcome({}, (describe(error),))
            status = ERROR
        finally:
            run.close()
        for problem in outcome.problems:
            click.echo(f"timerstore-spark {self.name}: {problem}", err=True)
        if common.report is not None:
            write_report(common.report, report_of(run, args, outcome, status))
        return status


def run_command(command: click.Command, name: str, argv: Sequence[str] | None) -> int:
    """Run a click command; its exit status, 1 for wrong arguments."""
    try:
        answer = command.main(
            args=None if argv is None else list(argv), prog_name=name, standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return ERROR
    except click.Abort:
        return ERROR
    return answer if isinstance(answer, int) else FINE


def describe(error: BaseException) -> str:
    """One message for a person; of Spark's, the lines that say what happened."""
    if isinstance(error, TimerStoreError):
        return str(error)
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark did not start; it needs Java 17 or newer in PATH or JAVA_HOME"
    if isinstance(error, PySparkException) or "Py4J" in type(error).__name__:
        in_worker = list(_RAISED.finditer(text))
        if in_worker:  # what a worker raised: its own message stands behind the traceback
            return text[in_worker[-1].start(1) :].split(" SQLSTATE:")[0].strip()
        lines = [line for line in text.splitlines() if line.strip()]
        text = "\n".join(lines[:_ERROR_LINES_MAX])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def report_of(run: Run, args: Any, outcome: Outcome, status: int) -> dict[str, Any]:
    """What stands in a report."""
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
    """Write it whole, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(path)


def need_there(*paths: str) -> None:
    """Raise ConfigError for each local path that does not exist; a URL is Spark's to look for."""
    missing = [one for one in paths if "://" not in one and not Path(one).exists()]
    if missing:
        raise ConfigError([f"{one}: no such file or directory" for one in missing])
