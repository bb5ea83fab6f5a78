"""Fetch the official clients, and build their drivers: `python -m tests.clients.fetch`.

A client that cannot be fetched is named loudly; its tests then do not run, and fail where
INTEROP=required.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE / "built"
JAVA_VERSIONS = ("5.2.0", "5.0.7")
PYTHON_VERSION = "5.1.2"


def run(*words: str | Path, cwd: Path | None = None) -> None:
    """Run a program; raise with the end of its output if it fails."""
    done = subprocess.run(
        [str(one) for one in words], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words[:4]))}: {(done.stdout + done.stderr)[-2000:]}")


def class_path(version: str) -> str:
    """Return the classes of a release of the client for Java, and of its driver."""
    folder = BUILT / f"java-{version}"
    return f"{(folder / 'classpath').read_text().strip()}:{folder}"


def fetch_java(version: str) -> None:
    folder = BUILT / f"java-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    run("mvn", "-q", "-B", "-Dstyle.color=never", f"-Dclient.version={version}",
        "dependency:build-classpath", f"-Dmdep.outputFile={folder / 'classpath'}",
        cwd=HERE / "java")  # fmt: skip
    run("javac", "-cp", class_path(version), "-d", folder, HERE / "java" / "Driver.java")


def fetch_python() -> None:
    """Make an environment of its own: the client brings twenty packages."""
    folder = BUILT / "python"
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "pip", "install", "-q", f"rocketmq-python-client=={PYTHON_VERSION}")


def fetch_node() -> None:
    folder = BUILT / "node"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "node" / "package.json", folder)
    run("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)
    shutil.copy(HERE / "node" / "driver.js", folder)


def fetch_rust() -> None:
    run("cargo", "build", "--release", "--quiet", "--manifest-path", HERE / "rust" / "Cargo.toml",
        "--target-dir", BUILT / "rust")  # fmt: skip


CLIENTS: dict[str, tuple[Callable[[], None], Callable[[], Sequence[str | Path]]]] = {
    **{
        f"java-{version}": (
            lambda version=version: fetch_java(version),
            lambda version=version: ["java", "-cp", class_path(version), "Driver"],
        )
        for version in JAVA_VERSIONS
    },
    "python": (fetch_python, lambda: [BUILT / "python/bin/python", HERE / "python/driver.py"]),
    "node": (fetch_node, lambda: ["node", BUILT / "node/driver.js"]),
    "rust": (fetch_rust, lambda: [BUILT / "rust/release/driver"]),
}
"""For each client: how to fetch it, and the command of its driver."""


def is_fetched(client: str) -> bool:
    return (BUILT / f"{client}.fetched").exists()


def main(wanted: Sequence[str]) -> int:
    failed = 0
    for client in wanted or CLIENTS:
        if is_fetched(client):
            continue
        print(f"fetching the client {client}", flush=True)
        try:
            CLIENTS[client][0]()
        except OSError as error:
            failed += 1
            print(f"!!! NOT TESTED: the client {client} could not be fetched: {error}",
                  file=sys.stderr)  # fmt: skip
            continue
        (BUILT / f"{client}.fetched").touch()
    return failed if os.environ.get("INTEROP") == "required" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
