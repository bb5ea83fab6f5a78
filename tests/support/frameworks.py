"""Run the integration tests of kombu and Celery, from their source distributions, on timerstore://.

    make test-frameworks                        # all
    make test-frameworks ARGS="canvas beat"     # some files of Celery; `kombu` is kombu's

Celery's tests run in a virtual environment of their own, in build/frameworks, with a server of a
store as the broker and a Redis for the results. Tests that are left out are in
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "frameworks"
CELERY_FILES = ("tasks", "canvas", "inspect", "worker", "beat")
NEEDED = (
    *("cffi", "cryptography", "cronsim", "django", "freezegun", "msgspec", "numpy", "pydantic"),
    *("pytest", "pytest-celery", "pytest-order", "pytest-rerunfailures", "pytest-subtests"),
    *("pytest-timeout", "redis"),
)
_PLUGIN = "tests.contrib.celery.frameworks.excepting"
_PATIENCE_S = 20.0


def source_of(name: str) -> Path:
    """Return the folder of a source distribution, of the version that is installed."""
    found = PLACE / f"{name}-{version(name)}"
    if not found.exists():
        print(f"fetching {found.name}", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        subprocess.run([*pip, "-d", str(PLACE), f"{name}=={version(name)}"], check=True)
        with tarfile.open(f"{found}.tar.gz") as packed:
            packed.extractall(PLACE, filter="data")
    return found


def python_of_celery() -> Path:
    """Return the interpreter for Celery's tests, in an environment that has what they need."""
    place = PLACE / f"venv-{version('celery')}-{version('kombu')}"
    python = place / "bin" / "python"
    if not (place / ".made").exists():
        print(f"installing what Celery's tests need in {place.relative_to(ROOT)}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pinned = [f"{name}=={version(name)}" for name in ("celery", "kombu")]
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
    given = {"KOMBU_SOURCE": str(source_of("kombu")), "TIMERSTORE_FRAMEWORK": "kombu"}
    tests = "tests/contrib/celery/frameworks/test_kombu.py"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", _PLUGIN, tests]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **given}, check=False).returncode


def run_celery(files: list[str]) -> int:
    """Run files of Celery's tests, each in a process of its own; return the worst exit code."""
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed; on Debian: apt install redis-server")
    python, source = python_of_celery(), source_of("celery")
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
        return max(_run_file(python, source, one, _settings(python, broker, port)) for one in files)


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


def _run_file(python: Path, source: Path, name: str, settings: Mapping[str, str]) -> int:
    print(f"celery: test_{name}.py", flush=True)
    command = [str(python), "-m", "pytest", "-q", "-rsR", "-p", _PLUGIN, "-p", "no:cacheprovider"]
    command.append(f"t/integration/test_{name}.py")
    return subprocess.run(command, cwd=source, env=settings, check=False).returncode


def main(names: list[str]) -> int:
    """Run the parts that are named, or all."""
    PLACE.mkdir(parents=True, exist_ok=True)
    files = [one for one in CELERY_FILES if not names or one in names]
    codes = [run_kombu()] if not names or "kombu" in names else [0]
    return max([*codes, run_celery(files) if files else 0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
