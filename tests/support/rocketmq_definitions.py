"""Compile the definitions of timerstore/rocketmq: `make definitions`."""

import importlib.resources
import subprocess
import sys
import tempfile
from pathlib import Path

import timerstore

# Not by an import of the package, which needs the compiled file.
FOLDER = Path(timerstore.__file__).parent / "rocketmq" / "definitions"
COMPILED = FOLDER / "definitions.binpb"


def compiled() -> bytes:
    """Return the descriptors of all .proto files, and of those that they import."""
    common = importlib.resources.files("grpc_tools") / "_proto"
    names = sorted(one.name for one in FOLDER.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", f"-I{common}",
             "--include_imports", f"--descriptor_set_out={made}", *names],
            check=True,
        )  # fmt: skip
        return made.read_bytes()


if __name__ == "__main__":
    COMPILED.write_bytes(compiled())
