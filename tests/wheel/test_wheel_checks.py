"""The checks of wheels find each kind of defect: `make wheels` depends on them."""

import shutil
import subprocess
import sysconfig
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

pytest.importorskip("elftools")
from tests.support import wheel_checks

pytestmark = pytest.mark.more

MODULES = [
    f"timerstore/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    for name in ("_native", "_fastpath")
]
ROOT = Path(__file__).parents[2]


def wheel(folder: Path, *more: str) -> Path:
    """Return a wheel with the modules of the checkout, which are linked for this machine."""
    made = folder / "timerstore-0.1.0-cp311-cp311-linux_x86_64.whl"
    with ZipFile(made, "w", ZIP_DEFLATED) as packed:
        for name in MODULES:
            packed.write(ROOT / name, name)
        for name in ("timerstore/api.py", "timerstore-0.1.0.dist-info/METADATA", *more):
            packed.writestr(name, "text")
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n"
        packed.writestr("timerstore-0.1.0.dist-info/WHEEL", tag)
        record = "".join(f"{name},,\n" for name in packed.namelist())
        packed.writestr("timerstore-0.1.0.dist-info/RECORD", record)
    return made


def test_files_of_tests_and_other_packages_are_found(tmp_path: Path) -> None:
    strange = ["tests/conftest.py", "timerstore/tests/test_put.py", "timerstore.libs/libc.so.6"]
    found = list(wheel_checks.contents(wheel(tmp_path, *strange)))
    assert len(found) == 3
    assert all(name in text for name, text in zip(strange, found, strict=True))


def test_large_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel(tmp_path)
    monkeypatch.setattr(wheel_checks, "MAX_BYTES", made.stat().st_size)
    assert not list(wheel_checks.contents(made))
    monkeypatch.setattr(wheel_checks, "MAX_BYTES", made.stat().st_size - 1)
    assert "bytes" in "".join(wheel_checks.contents(made))


def test_module_with_symbols_is_found(tmp_path: Path) -> None:
    found = list(wheel_checks.modules(wheel(tmp_path), "manylinux_2_17_x86_64"))
    assert sum("is not stripped" in one for one in found) == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="NOT RUN: no compiler")
def test_module_with_a_memcpy_of_its_own_is_found(tmp_path: Path) -> None:
    source, module = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text("void memcpy(void) {} void caller(void) { memcpy(); }")
    options = ("-shared", "-fPIC", "-fno-builtin", "-fvisibility=hidden")
    subprocess.run(("cc", *options, source, "-o", module), check=True)
    made = tmp_path / "timerstore-0.1.0-cp311-cp311-linux_x86_64.whl"
    with ZipFile(made, "w") as packed:
        for name in MODULES:
            packed.write(module, name)
    found = list(wheel_checks.modules(made, "manylinux_2_17_x86_64"))
    assert sum("has a memcpy of its own" in one for one in found) == 2
    assert not any(
        "memcpy" in one for one in wheel_checks.modules(wheel(tmp_path), "manylinux_2_17_x86_64")
    )


def test_module_for_another_platform_is_found(tmp_path: Path) -> None:
    found = "\n".join(wheel_checks.modules(wheel(tmp_path), "musllinux_1_2_aarch64"))
    assert found.count("is for EM_X86_64, not EM_AARCH64") == 2
    assert found.count("expected ['libc.musl-aarch64.so.1']") == 2


def test_missing_and_additional_modules_are_found(tmp_path: Path) -> None:
    made = tmp_path / "timerstore-0.1.0-cp311-cp311-linux_x86_64.whl"
    with ZipFile(made, "w") as packed:
        packed.write(ROOT / MODULES[0], MODULES[0])
    assert "the compiled modules are" in "".join(
        wheel_checks.modules(made, "manylinux_2_17_x86_64")
    )


def test_tag_that_the_tools_do_not_confirm_is_found(tmp_path: Path) -> None:
    tag, twine = wheel_checks.tools(wheel(tmp_path), "manylinux_2_17_x86_64")
    assert "auditwheel does not find manylinux_2_17_x86_64" in tag
    assert "platform tag" in tag
    assert "twine check --strict" in twine
