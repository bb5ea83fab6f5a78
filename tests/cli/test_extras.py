"""The command line with only the packages of timerstore[cli]."""

import subprocess
import sys
from pathlib import Path

import pytest

OTHERS = ("msgspec", "starlette", "uvicorn", "prometheus_client", "opentelemetry", "obstore",
          "lark", "cronsim", "pyspark", "pandas")  # fmt: skip
ALONE = (
    "import sys\n"
    f"sys.modules.update(dict.fromkeys({OTHERS!r}))\n"
    "from timerstore.cli import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_commands_on_a_path_need_no_other_extra(tmp_path: Path) -> None:
    path = tmp_path / "orders.store"
    for words in (
        ["init", path], ["put", path, "orders", "a", "--in", "1h"], ["ls", path], ["count", path],
        ["--help"], ["serve", "--help"], ["ping", "--help"],
    ):  # fmt: skip
        done = run(*words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("words", [["ping"], ["ls"], ["count"]])
def test_an_address_without_msgspec_names_the_extra(words: list[str]) -> None:
    done = run(*words, "unix:///nowhere.sock")
    assert done.returncode != 0
    assert "pip install '.[net]'" in done.stderr
