"""Fetch the official clients and Apache's proxy, and build our programs for them:
`python -m tests.clients.fetch`.

One that cannot be fetched is named loudly; its tests then do not run, and fail where
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


def class_path(name: str) -> str:
    """Return the classes that Maven fetched, and those of our program for them."""
    folder = BUILT / name
    return f"{(folder / 'classpath').read_text().strip()}:{folder}"


def fetch_by_maven(name: str, program: Path, *options: str) -> None:
    """Fetch what the pom.xml next to a program needs, and compile the program."""
    folder = BUILT / name
    folder.mkdir(parents=True, exist_ok=True)
    run("mvn", "-q", "-B", "-Dstyle.color=never", *options, "dependency:build-classpath",
        f"-Dmdep.outputFile={folder / 'classpath'}", cwd=program.parent)  # fmt: skip
    run("javac", "-cp", class_path(name), "-d", folder, program)


def fetch_java(version: str) -> None:
    fetch_by_maven(f"java-{version}", HERE / "java/Driver.java", f"-Dclient.version={version}")


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
            lambda version=version: ["java", "-cp", class_path(f"java-{version}"), "Driver"],
        )
        for version in JAVA_VERSIONS
    },
    "python": (fetch_python, lambda: [BUILT / "python/bin/python", HERE / "python/driver.py"]),
    "node": (fetch_node, lambda: ["node", BUILT / "node/driver.js"]),
    "rust": (fetch_rust, lambda: [BUILT / "rust/release/driver"]),
}
"""For each client: how to fetch it, and the command of its driver."""
APACHE = "apache"
FETCHED = {
    **{client: fetch for client, (fetch, _) in CLIENTS.items()},
    APACHE: lambda: fetch_by_maven(APACHE, HERE / "apache/Apache.java"),
}
"""The clients, and Apache's proxy and broker."""


def is_fetched(name: str) -> bool:
    """Return whether it was fetched since our program for it changed."""
    mark, programs = BUILT / f"{name}.fetched", HERE / name.partition("-")[0]
    return mark.exists() and all(
        one.stat().st_mtime <= mark.stat().st_mtime for one in programs.rglob("*")
    )


def main(wanted: Sequence[str]) -> int:
    failed = 0
    for name in wanted or FETCHED:
        if is_fetched(name):
            continue
        print(f"fetching {name}", flush=True)
        try:
            FETCHED[name]()
        except OSError as error:
            failed += 1
            print(f"!!! NOT TESTED: {name} could not be fetched: {error}", file=sys.stderr)
            continue
        (BUILT / f"{name}.fetched").touch()
    return failed if os.environ.get("INTEROP") == "required" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
