"""Make the fixture of a release with its wheel, and unpack it.

    python -m tests.support.releases WHEEL

writes tests/fixtures/releases/VERSION, whose README describes the files. release_program.py runs
in an environment that has the wheel, and not this repository.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "releases"
PROGRAM = Path(__file__).with_name("release_program.py")
FILES = ("store", "killed", "shards", "backup")


def versions() -> list[str]:
    """Return the releases that have a fixture."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def unpack(version: str, target: Path) -> Path:
    """Unpack the files of a release into a folder; return it."""
    with tarfile.open(FOLDER / version / "files.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        archive.extractall(target)
    return target


def expected(version: str) -> dict[str, Any]:
    found = json.loads((FOLDER / version / "expected.json").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def frames(version: str) -> list[tuple[str, bytes]]:
    """Return the payloads of the frames, each with its sender: client or server."""
    found = json.loads((FOLDER / version / "frames.json").read_text("utf-8"))
    return [(side, base64.b64decode(payload)) for side, payload in found]


def make(wheel: Path) -> Path:
    """Make the fixture of a wheel's version; return its folder."""
    with tempfile.TemporaryDirectory(prefix="ts-") as name:  # short: sockets have short paths
        scratch = Path(name)
        files = scratch / "f"
        files.mkdir()
        subprocess.run((sys.executable, "-m", "venv", scratch / "env"), check=True)
        python = scratch / "env" / "bin" / "python"
        elsewhere = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run((python, "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[net]"),
                       check=True, cwd=scratch, env=elsewhere)  # fmt: skip
        version = subprocess.check_output((python, PROGRAM, files), cwd=scratch, env=elsewhere)
        made = FOLDER / version.decode().split()[-1]
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for one in ("expected.json", "frames.json"):
            shutil.copy(files / one, made)
        # GNU tar stores holes as holes.
        packed = subprocess.check_output(("tar", "-S", "--xz", "-c", *FILES), cwd=files)
        (made / "files.tar.xz").write_bytes(packed)
    return made


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
