"""The build names a missing tool before it compiles."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("setuptools")  # a Python without it gets it only while it builds
from native import build

BUILD = Path(build.__file__)
INCLUDE = f"-I{sysconfig.get_path('include')}"


def built(**variables: str) -> str:
    """Return the error of a build, which must fail."""
    done = subprocess.run([sys.executable, BUILD], env=os.environ | variables, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 1
    return done.stderr


def test_missing_compiler_is_named_with_the_packages_to_install() -> None:
    error = built(CC="/nowhere/cc")
    assert "Missing: the C compiler /nowhere/cc" in error
    assert "apt install build-essential python3-dev" in error
    assert "Traceback" not in error


@pytest.mark.skipif(shutil.which("cc") is None, reason="NOT RUN: no compiler")
@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ([INCLUDE], None),
        ([], "the header Python.h"),
        ([INCLUDE, "-nostdinc"], "the header "),
        ([INCLUDE, "--no-such-option"], "a C compiler that works: "),
    ],
)
def test_missing_header_is_named(words: list[str], missing: str | None) -> None:
    found = build.missing_tool(["cc", *words])
    assert found == missing or (found is not None and missing and found.startswith(missing))


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_build_elsewhere_than_on_linux_is_rejected_in_one_sentence(platform: str) -> None:
    """As pip does first, whether it has the source distribution or a checkout."""
    program = f"""
import sys, setuptools.build_meta, setuptools.command.build_ext, setuptools.command.egg_info, cffi
sys.platform = {platform!r}
setuptools.build_meta.get_requires_for_build_wheel()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], text=True, check=False,
                          capture_output=True, cwd=BUILD.parents[1])  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        f"timerstore runs on Linux only; this is {platform}.\n",
    )


@pytest.mark.parametrize("variable", ["TS_BUILD", "TS_TARGET"])
def test_unknown_variant_is_rejected(variable: str) -> None:
    error = built(**{variable: "fast"})
    assert f"{variable}: wanted " in error
    assert "got 'fast'" in error
