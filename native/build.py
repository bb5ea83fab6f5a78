"""Build the compiled modules timerstore._native and timerstore._fastpath.

`_native` is the C code of the area folders (log, queue, timer, ...), called through cffi. cffi
reads the declarations in native/api/*.h, in the order in which native/timerstore.h includes them.
`_fastpath` is the CPython extension in native/fastpath, linked with the same C code.

pyproject.toml names `BuildNative` as its build_ext command. `python native/build.py` builds in
place and compiles only the files that changed. The environment variable TS_BUILD selects another
build than a release: debug, asan or cover. Our own sources are compiled with all warnings, the
code that cffi generates with the compiler's defaults.

The build writes two files that are not in git: native/_native.c, and native/format/crc32_table.h,
which crc_table.py computes.

Raises:
    CompileError: the C code does not compile.
    cffi.CDefError: native/api/*.h do not parse.
"""

import os
import re
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
AREAS = ("base", "log", "queue", "timer", "index", "read", "recovery", "table", "os")
FASTPATH = NATIVE / "fastpath"
CRC_TABLE = NATIVE / "format" / "crc32_table.h"

# A release build does not use -Werror: a newer compiler may have warnings that we do not know.
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
    """Return the cffi builder of `_native`, with the declarations of native/api/*.h."""
    ffi = FFI()
    includes = (NATIVE / "timerstore.h").read_text(encoding="utf-8")
    for name in re.findall(r'#include "(api/\w+\.h)"', includes):
        ffi.cdef((NATIVE / name).read_text(encoding="utf-8"))
    ffi.set_source("timerstore._native", '#include "timerstore.h"')
    return ffi


class BuildNative(build_ext):
    """Generate the C code of `_native`, compile our sources with our flags, and link both."""

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution must contain."""
        files = [*NATIVE.glob("*.py"), *_headers(), *_sources(), *FASTPATH.glob("*.[ch]")]
        return [str(file.relative_to(NATIVE.parent)) for file in files]

    def build_extension(self, ext: Extension) -> None:
        """Build one of the two extension modules."""
        kind = os.environ.get("TS_BUILD", "")
        if kind not in COMPILE_FLAGS:
            wanted = ", ".join(filter(None, COMPILE_FLAGS))
            raise SystemExit(f"TS_BUILD: wanted {wanted} or nothing, got {kind!r}")
        make_ffi().emit_c_code(str(GENERATED))  # neither this nor the next rewrites an equal file
        subprocess.run([sys.executable, NATIVE / "crc_table.py", CRC_TABLE], check=True)
        ext.include_dirs = [str(NATIVE)]
        ext.extra_compile_args = COMPILE_FLAGS[kind]
        ext.extra_link_args = LINK_FLAGS[kind]
        inputs = (*_headers(), *FASTPATH.glob("*.h"), *_sources(), NATIVE / "build.py")
        ext.depends = [str(file) for file in inputs]
        ext.extra_objects = self._compile_ours(kind)
        ext.depends += ext.extra_objects
        marker = Path(self.build_temp) / f"{ext.name}.kind"
        self.force = self.force or not marker.exists() or marker.read_text() != kind
        super().build_extension(ext)
        marker.write_text(kind)

    def _compile_ours(self, kind: str) -> list[str]:
        """Compile each source that is newer than its object; return all objects."""
        folder = Path(self.build_temp) / (kind or "release")
        inputs = max(file.stat().st_mtime_ns for file in (*_headers(), NATIVE / "build.py"))
        objects = []
        for source in _sources():
            made = (folder / source.relative_to(NATIVE)).with_suffix(".o")
            objects.append(str(made))
            if made.exists() and made.stat().st_mtime_ns > max(inputs, source.stat().st_mtime_ns):
                continue
            made.parent.mkdir(parents=True, exist_ok=True)
            # A relative name keeps the object below the folder and the compiler's messages short.
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
    folders = [NATIVE, *(NATIVE / name for name in ("api", "format", *AREAS))]
    return sorted(header for folder in folders for header in folder.glob("*.h"))


def _sources() -> list[Path]:
    return sorted(source for name in AREAS for source in (NATIVE / name).glob("*.c"))


if __name__ == "__main__":
    os.chdir(NATIVE.parent)
    warnings.filterwarnings("ignore", message=".*ext-modules.*experimental")
    setup(script_args=["--quiet", "build_ext", "--inplace"])
