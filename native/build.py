"""Builds timerstore._native: the C of native/src behind the names of native/api.h.

Data:     reads native/api.h and native/src/*.c; writes native/_native.c and the table that
          crc_table.py computes (neither is kept in git).
Holds:    our sources are compiled with all warnings, what cffi generates with the compiler's own.
Fails:    CompileError where the C does not compile; cffi's own where api.h does not parse.

Used by pyproject.toml (cmdclass), and by `python native/build.py`, which builds in place and
compiles only what changed. One switch, from the environment: TS_BUILD=debug|asan|cover; without
it a release is built.
"""

import os
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

from cffi import FFI
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path(__file__).resolve().parent
GENERATED = NATIVE / "_native.c"
HOT = NATIVE / "hot"
CRC_TABLE = NATIVE / "format" / "crc32_table.h"

# A release does not stop at a warning: a compiler that is newer than this release has new ones.
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
COMPILE_FLAGS = {
    "": ["-O3"],
    "debug": ["-O1", "-g", "-UNDEBUG", "-Werror"],
    "asan": ["-O1", "-g", "-UNDEBUG", "-Werror", "-fno-omit-frame-pointer",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "cover": ["-O0", "-g", "-UNDEBUG", "--coverage"],
}  # fmt: skip
LINK_FLAGS = {
    "": ["-pthread"],
    "debug": ["-pthread"],
    "asan": ["-pthread", "-fsanitize=address,undefined"],
    "cover": ["-pthread", "--coverage"],
}


def make_ffi() -> FFI:
    """Give the cffi builder of the module."""
    ffi = FFI()
    ffi.cdef((NATIVE / "api.h").read_text(encoding="utf-8"))
    ffi.set_source("timerstore._native", '#include "timerstore.h"')
    return ffi


class BuildNative(build_ext):
    """Writes the module's C, compiles our sources with our flags, links both."""

    def get_source_files(self) -> list[str]:
        """Name what a source distribution must hold."""
        files = [*NATIVE.glob("*.py"), *_headers(), *_sources(), *HOT.glob("*.[ch]")]
        return [str(file.relative_to(NATIVE.parent)) for file in files]

    def build_extension(self, ext: Extension) -> None:
        """Build one of the two extensions: what cffi makes of api.h, and the hot front."""
        kind = os.environ.get("TS_BUILD", "")
        if kind not in COMPILE_FLAGS:
            wanted = ", ".join(filter(None, COMPILE_FLAGS))
            raise SystemExit(f"TS_BUILD: wanted {wanted} or nothing, got {kind!r}")
        make_ffi().emit_c_code(str(GENERATED))  # leaves an equal file alone, as the next does
        subprocess.run([sys.executable, NATIVE / "crc_table.py", CRC_TABLE], check=True)
        ext.include_dirs = [str(NATIVE)]
        ext.extra_compile_args = COMPILE_FLAGS[kind]
        ext.extra_link_args = LINK_FLAGS[kind]
        inputs = (*_headers(), *HOT.glob("*.h"), *_sources(), NATIVE / "build.py")
        ext.depends = [str(file) for file in inputs]
        ext.extra_objects = self._compile_ours(kind)
        ext.depends += ext.extra_objects
        marker = Path(self.build_temp) / f"{ext.name}.kind"
        self.force = self.force or not marker.exists() or marker.read_text() != kind
        super().build_extension(ext)
        marker.write_text(kind)

    def _compile_ours(self, kind: str) -> list[str]:
        """Compile each source that is newer than its object; give all objects."""
        folder = Path(self.build_temp) / (kind or "release")
        inputs = max(file.stat().st_mtime_ns for file in (*_headers(), NATIVE / "build.py"))
        objects = []
        for source in _sources():
            made = folder / f"{source.stem}.o"
            objects.append(str(made))
            if made.exists() and made.stat().st_mtime_ns > max(inputs, source.stat().st_mtime_ns):
                continue
            # The name is relative, so that the object lands in the folder and messages are short.
            [compiled] = self.compiler.compile(
                [os.path.relpath(source)],
                output_dir=str(folder),
                include_dirs=[str(NATIVE)],
                extra_postargs=["-std=c11", "-fvisibility=hidden", *WARNINGS, *COMPILE_FLAGS[kind],
                                "-isystem", sysconfig.get_path("include")],
            )  # fmt: skip
            Path(compiled).replace(made)
        return objects


def _headers() -> list[Path]:
    found = [*NATIVE.glob("*.h"), *NATIVE.glob("format/*.h"), *NATIVE.glob("src/*.h")]
    return sorted(found)


def _sources() -> list[Path]:
    return sorted(NATIVE.glob("src/*.c"))


if __name__ == "__main__":
    os.chdir(NATIVE.parent)
    warnings.filterwarnings("ignore", message=".*ext-modules.*experimental")
    setup(script_args=["--quiet", "build_ext", "--inplace"])
