"""What a wheel must be before it is published: its tag, its contents, its modules, its size.

    python -m tests.support.wheel_checks WHEEL...

Exit status 1 if a wheel breaks a rule.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

MAX_BYTES = 2_000_000
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
NEEDED = {
    "manylinux": {"libc.so.6", "libm.so.6", "libpthread.so.0"},
    "musllinux": {"libc.musl-{machine}.so.1"},
}
"""The libraries that a module may need, by the kind of the target."""
PACKAGES = re.compile(r"(timerstore|pyspark_timerstore|timerstore-[^/]+\.dist-info)/")
MODULES = {"timerstore/_native", "timerstore/_fastpath"}


def complaints(wheel: Path, target: str) -> Iterator[str]:
    """Yield the defects of a wheel for a target such as musllinux_1_2_aarch64."""
    found = [*contents(wheel), *modules(wheel, target), *tools(wheel, target)]
    for one in found:
        yield f"{wheel.name}: {one}"


def contents(wheel: Path) -> Iterator[str]:
    """Check the size of the file and the names in it."""
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        yield f"has {size} bytes, at most {MAX_BYTES} are allowed"
    for name in ZipFile(wheel).namelist():
        if not PACKAGES.match(name) or {"tests", "benchmarks"} & set(name.split("/")):
            yield f"does not belong into a wheel: {name}"


def modules(wheel: Path, target: str) -> Iterator[str]:
    """Check the compiled modules: processor, libraries, memcpy, no symbols of a debugger."""
    kind, _, machine = re.split(r"_\d+_(\d+)_", target)
    needed_at_most = {name.format(machine=machine) for name in NEEDED[kind]}
    packed = ZipFile(wheel)
    compiled = [name for name in packed.namelist() if name.endswith(".so")]
    if {name.partition(".")[0] for name in compiled} != MODULES or len(compiled) != len(MODULES):
        yield f"the compiled modules are {compiled}"
    for name in compiled:
        with packed.open(name) as file:
            elf = ELFFile(file)
            dynamic = elf.get_section_by_name(".dynamic")
            needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
            symbols = elf.get_section_by_name(".dynsym").iter_symbols()
            if "memcpy" not in {one.name for one in symbols if one["st_shndx"] == "SHN_UNDEF"}:
                yield f"{name} has a memcpy of its own, which is slower than the C library's"
            if elf["e_machine"] != MACHINES[machine]:
                yield f"{name} is for {elf['e_machine']}, not {MACHINES[machine]}"
            if needed - needed_at_most:
                yield f"{name} needs {sorted(needed)}, expected {sorted(needed_at_most)}"
            if elf.get_section_by_name(".symtab") is not None:
                yield f"{name} is not stripped"


def tools(wheel: Path, target: str) -> Iterator[str]:
    """Ask auditwheel for the tag, and twine whether an index takes the file."""
    told = _told("auditwheel", "show", wheel)
    tag = re.search(r'platform\s+tag:\s+"([^"]+)"', told)
    if tag is None or tag[1] != target or not wheel.stem.endswith(target):
        yield f"auditwheel does not find {target}: {told}"
    told = _told("twine", "check", "--strict", wheel)
    if "PASSED" not in told or "WARNING" in told:
        yield f"twine check --strict: {told}"


def _told(*command: str | Path) -> str:
    done = subprocess.run((sys.executable, "-m", *command), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    return done.stdout


def main(wheels: list[str]) -> int:
    found = []
    for wheel in map(Path, wheels):
        tag = wheel.stem.rpartition("-")[2].rpartition(".")[2]  # the newest of several
        found += complaints(wheel, tag)
        print(f"--- {wheel.name}: {tag}", flush=True)
    for one in found:
        print(f"!!! {one}", file=sys.stderr)
    return bool(found) or not wheels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
