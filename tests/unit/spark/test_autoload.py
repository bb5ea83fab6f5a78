"""Importing the Spark package in a process without pyspark, pyarrow or numpy."""

import subprocess
import sys

import pytest

from tests.support.spark.session import AUTOLOAD, ROOT

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise {error}("blocked: " + name)
sys.meta_path.insert(0, Block())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{ROOT}:{AUTOLOAD}", "PATH": "/usr/bin:/bin"},
    )


def test_package_imports_without_pyspark_and_pyarrow() -> None:
    blocked = BLOCKED.format(blocked={"pyspark", "pyarrow", "pandas"}, error="ImportError")
    done = run(
        f"{blocked}\nimport timerstore.spark as door\n"
        "try:\n    door.register(None)\nexcept ImportError as error:\n    print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "pip install '.[spark]' in a checkout" in done.stdout


@pytest.mark.more
@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "OSError"])
def test_autoload_module_never_raises(error: str) -> None:
    for blocked in ({"pyspark"}, {"pyarrow"}, {"timerstore"}, {"numpy"}):
        code = BLOCKED.format(blocked=blocked, error=error)
        done = run(f"{code}\nimport pyspark_timerstore as m\nprint(hasattr(m, 'DefaultSource'))")
        assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
