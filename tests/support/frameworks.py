"""Run the integration tests of kombu and Celery, from their source distributions, on timerstore://.

    make test-frameworks                        # all
    make test-frameworks ARGS="canvas beat"     # some files of Celery; `kombu` is kombu's
    make test-frameworks ARGS="old"             # the oldest Celery that timerstore supports

Celery's tests run in a virtual environment of their own, in build/frameworks, with a server of a
store as the broker and a Redis for the results. With the oldest release, a few of its own tests run
(OLD_CASES), and a few of tests/contrib/celery (OLD_OWN). Tests that are left out are in
tests/contrib/celery/frameworks/exceptions.toml, with reasons.
"""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "frameworks"
CELERY_FILES = ("tasks", "canvas", "inspect", "worker", "beat")
NEEDED = (
    *("cffi", "click", "cryptography", "cronsim", "django", "freezegun", "hypothesis", "msgspec"),
    *("numpy", "pydantic", "pytest", "pytest-celery", "pytest-order", "pytest-rerunfailures"),
    *("pytest-subtests", "pytest-timeout", "rich"),
)
OLD_CASES = {
    "tasks": (
        *("test_tasks::test_basic_task", "test_tasks::test_multiprocess_producer"),
        *("test_tasks::test_eta", "test_tasks::test_expired", "test_tasks::test_revoked"),
        *("test_tasks::test_retry", "test_tasks::test_task_retried_priority"),
    ),
    "canvas": (
        *("test_chain::test_complex_chain", "test_chain::test_chain_error_handler_with_eta"),
        *("test_group::test_nested_group", "test_group::test_large_group"),
        *("test_chord::test_group_chain", "test_chord::test_chord_on_error"),
        *("test_chord::test_large_header", "test_chord::test_priority_chain"),
    ),
}
"""Celery's own tests for the oldest release: by file, their names."""
OLD_OWN = (
    *("test_control.py", "test_processes.py", "test_settling.py", "test_transport.py"),
    "test_workers.py::test_delayed_tasks_run_once_and_not_early[prefork]",
    "test_workers.py::test_retries_with_countdown_wait_in_the_store",
    "test_workers.py::test_task_of_a_killed_worker_begins_in_another_within_two_seconds",
)
"""Tests of tests/contrib/celery for the oldest release."""
_PLUGIN = "tests.contrib.celery.frameworks.excepting"
_PATIENCE_S = 20.0


class Release(NamedTuple):
    """Versions of Celery and kombu."""

    celery: str
    kombu: str


OLD = Release("5.5.3", "5.5.4")
"""The newest versions of the oldest line in pyproject.toml."""


def source_of(name: str, wanted: str) -> Path:
    """Return the folder of a source distribution of this version."""
    found = PLACE / f"{name}-{wanted}"
    if not found.exists():
        print(f"fetching {found.name}", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        subprocess.run([*pip, "-d", str(PLACE), f"{name}=={wanted}"], check=True)
        with tarfile.open(f"{found}.tar.gz") as packed:
            packed.extractall(PLACE, filter="data")
    return found


def python_of(release: Release) -> Path:
    """Return the interpreter for Celery's tests, in an environment that has what they need."""
    place = PLACE / f"venv-{release.celery}-{release.kombu}"
    python = place / "bin" / "python"
    if not (place / ".made").exists():
        print(f"installing what Celery's tests need in {place.relative_to(ROOT)}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pinned = [f"celery[redis]=={release.celery}", f"kombu=={release.kombu}"]
        pip = [str(python), "-m", "pip", "install", "--quiet", *pinned]
        subprocess.run([*pip, *NEEDED], check=True)
        (place / ".made").touch()
    return python


@contextmanager
def running(command: list[str], address: Path | tuple[str, int]) -> Iterator[None]:
    """Run a server until the end of the block; it is entered when the server accepts."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        is_path = isinstance(address, Path)
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as probe:
                if not probe.connect_ex(str(address) if is_path else address):
                    break
            if server.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"{command[0]} did not start")
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def run_kombu() -> int:
    """Run kombu's classes; return the exit code."""
    source = source_of("kombu", version("kombu"))
    given = {"KOMBU_SOURCE": str(source), "TIMERSTORE_FRAMEWORK": "kombu"}
    tests = "tests/contrib/celery/frameworks/test_kombu.py"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", _PLUGIN, tests]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **given}, check=False).returncode


def run_old() -> int:
    """Run the few tests of the oldest release; return the worst exit code."""
    code = run_celery(OLD, OLD_CASES)
    print(f"celery {OLD.celery}: tests/contrib/celery", flush=True)
    given = {"PYTHONPATH": str(ROOT), "TIMERSTORE_FRAMEWORK": "old"}
    tests = [f"tests/contrib/celery/{one}" for one in OLD_OWN]
    command = [str(python_of(OLD)), "-m", "pytest", "-q", "-rs", "-p", _PLUGIN, *tests]
    own = subprocess.run(command, cwd=ROOT, env={**os.environ, **given}, check=False)
    return max(code, own.returncode)


def run_celery(release: Release, cases: Mapping[str, Sequence[str]]) -> int:
    """Run files of Celery's tests, each in a process of its own; return the worst exit code.

    `cases`: by file, the names of its tests; all of them if there are none.
    """
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed; on Debian: apt install redis-server")
    python, source = python_of(release), source_of("celery", release.celery)
    place = PLACE / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "sitecustomize.py").write_text("import timerstore.contrib.celery\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = place / "x.sock"
    serve = [sys.executable, "-m", "timerstore.cli", "serve", str(place / "s"), "--socket"]
    redis = ["redis-server", "--port", str(port), "--save", "", "--dir", str(place)]
    subprocess.run([*serve[:3], "init", str(place / "s")], cwd=ROOT, check=True)
    with ExitStack() as servers:
        servers.enter_context(running([*serve, str(broker)], broker))
        servers.enter_context(running(redis, ("127.0.0.1", port)))
        settings = _settings(python, broker, port)
        return max(_run_file(python, source, *one, settings) for one in cases.items())


def _settings(python: Path, broker: Path, port: int) -> Mapping[str, str]:
    return {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{broker.parent}:{ROOT}",
        "REDIS_PORT": str(port),
        "TEST_BROKER": f"timerstore://{broker}",
        "TEST_BACKEND": f"redis://127.0.0.1:{port}",
        "TIMERSTORE_FRAMEWORK": "celery",
        "WORKER_LOGLEVEL": "INFO",
    }


def _run_file(
    python: Path, source: Path, name: str, cases: Sequence[str], settings: Mapping[str, str]
) -> int:
    print(f"{source.name}: test_{name}.py", flush=True)
    command = [str(python), "-m", "pytest", "-q", "-rsR", "-p", _PLUGIN, "-p", "no:cacheprovider"]
    file = f"t/integration/test_{name}.py"
    command += [f"{file}::{one}" for one in cases] or [file]
    return subprocess.run(command, cwd=source, env=settings, check=False).returncode


def main(names: list[str]) -> int:
    """Run the parts that are named, or all."""
    PLACE.mkdir(parents=True, exist_ok=True)
    files = [one for one in CELERY_FILES if not names or one in names]
    codes = [run_kombu()] if not names or "kombu" in names else [0]
    if files:
        installed = Release(version("celery"), version("kombu"))
        codes.append(run_celery(installed, dict.fromkeys(files, ())))
    if not names or "old" in names:
        codes.append(run_old())
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
