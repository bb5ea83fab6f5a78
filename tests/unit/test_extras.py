"""The extras: what `import timerstore` loads, and the error of a part whose package is missing."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]["optional-dependencies"]
OF_DEVELOPERS = {"bench", "demo", "dev", "docs", "peers", "wheels"}
OF_USERS = EXTRAS.keys() - OF_DEVELOPERS - {"all"}

MODULES = {"opentelemetry-api": "opentelemetry", "grpcio": "grpc", "protobuf": "google"}
"""Modules that are not named as their packages."""
MODULES_MAX = 370
"""Modules that `import timerstore` loads after numpy: 350 on 2026-11-28, of them 308 of ours."""
IMPORT_MICROS_MAX = 120_000
LATER = {"ssl", "timerstore.shards", "timerstore.net", "timerstore.aio", "timerstore.cli",
         "timerstore.tables", "timerstore.spark", "timerstore._engine.buckets"}  # fmt: skip
"""Modules that take time and that few programs use."""


class Use(NamedTuple):
    """A part of timerstore that needs a package. `code` has the path of a store: P."""

    extra: str
    package: str
    code: str
    after: str = ""
    """A package of an extra that the program needs before this one."""


def command(extra: str, package: str, words: str) -> Use:
    """Return the use of a command. A word that begins with `P` begins with the path of a store."""
    given = ", ".join(f"P + {one[1:]!r}" if one[0] == "P" else repr(one) for one in words.split())
    return Use(extra, package, f"from timerstore.cli import main; sys.exit(main([{given}]))")


def job(extra: str, package: str, words: str, after: str = "") -> Use:
    """Return the use of a job of Spark."""
    return Use(
        extra,
        package,
        "from timerstore.spark.jobs.launcher import main\n"
        f"sys.exit(main({words.split()!r} + ['--path', P, '--out', P + '.out']))",
        after,
    )


USES = (
    command("cli", "click", "ls P"),
    command("cli", "rich", "ls P"),
    command("cli", "pyarrow", "dump P"),
    command("cli", "pyarrow", "export P P.parquet"),
    command("cli", "pyarrow", "import P P.jsonl"),
    Use("net", "msgspec", "timerstore.connect('unix:///nowhere')"),
    Use("net", "msgspec", "timerstore.open(P, shared=True)"),
    Use("net", "msgspec", "import timerstore.net; timerstore.net.serve(store(), socket=P + '.s')"),
    Use("net", "msgspec",
        "import asyncio, timerstore.aio; asyncio.run(timerstore.aio.connect('unix:///nowhere'))"),
    command("net", "msgspec", "ls unix:///nowhere"),
    command("net", "msgspec", "serve P --socket P.s"),
    Use("rocketmq", "grpc",
        "import timerstore.rocketmq; timerstore.rocketmq.serve(store(), address='127.0.0.1:0')"),
    command("rocketmq", "grpc", "serve P --grpc 127.0.0.1:0"),
    Use("serve", "starlette", "import timerstore.dashboard; timerstore.dashboard.serve(store())"),
    Use("serve", "uvicorn", "import timerstore.dashboard; timerstore.dashboard.serve(store())"),
    command("serve", "uvicorn", "serve P --ui"),
    Use("arrow", "pyarrow", "import timerstore.tables; list(timerstore.tables.read(P))"),
    Use("arrow", "pyarrow", "store().pull_batch('orders', 0, 0).to_arrow()"),
    Use("arrow", "pyarrow", "timerstore.open_shards(P + '.d', 2).close()\n"
        "timerstore.shards.stage(P + '.d', 'source', 0, 'part', [None])"),
    Use("cloud", "obstore", "timerstore.shards.commit('s3://bucket/orders', 's', 0, [])"),
    Use("spark", "pyspark", "import timerstore.spark; timerstore.spark.register(None)"),
    Use("spark", "pyarrow", "import timerstore.spark; timerstore.spark.register(None)"),
    job("spark", "pyspark", "audit"),
    job("spark", "click", "audit"),
    job("spark", "matplotlib", "forecast", after="pyspark"),
    job("connect", "grpc", "audit --remote sc://localhost:1", after="pyspark"),
    Use("celery", "celery", "import timerstore.contrib.celery"),
    Use("celery", "kombu", "import timerstore.contrib.celery"),
    Use("sql", "lark", "store().pull('orders', 0, 0, sql='a > 1')"),
    Use("cron", "cronsim", "store().put_every('orders', b'x', cron='* * * * *')"),
    Use("prometheus", "prometheus_client", "import timerstore.telemetry.prometheus"),
    command("prometheus", "prometheus_client", "serve P --socket P.s --metrics 127.0.0.1:0"),
    Use("django", "django", "import timerstore.contrib.django"),
    Use("otel", "opentelemetry", "import timerstore.telemetry.opentelemetry"),
)  # fmt: skip

HEAD = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import timerstore
P = {path!r}
def store():
    found = timerstore.open(P)
    found.put("orders", b"x")
    return found
"""


def run(code: str, absent: set[str], path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program without some packages."""
    return subprocess.run(
        [sys.executable, "-c", HEAD.format(absent=absent, path=str(path)) + code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("extras") / "orders.store"
    assert run("store().close()", set(), found).returncode == 0
    return found


@pytest.mark.parametrize(
    "use", USES, ids=lambda one: f"{one.extra}-{one.package}-{USES.index(one)}"
)
def test_missing_package_is_named_with_its_extra(use: Use, path: Path) -> None:
    if use.after:
        pytest.importorskip(use.after)
    done = run(use.code, {use.package}, path)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert f"pip install '.[{use.extra}]' in a checkout" in said
    assert use.package in said or use.package == "pyspark"


def test_each_extra_has_a_use() -> None:
    assert {use.extra for use in USES} == OF_USERS


def test_all_has_every_extra_for_users() -> None:
    [found] = EXTRAS["all"]
    assert re.fullmatch(r"timerstore\[([a-z,]+)\]", found)
    assert set(found.removeprefix("timerstore[").rstrip("]").split(",")) == OF_USERS


# --- import ---------------------------------------------------------------------------------------


def packages(*extras: str) -> set[str]:
    """Return the modules of the packages of some extras."""
    names = {re.match(r"[A-Za-z0-9_-]+", line)[0] for one in extras for line in EXTRAS[one]}  # type: ignore[index]
    return {MODULES.get(name, name).replace("-", "_") for name in names}


def loaded(code: str, imported: str = "timerstore") -> set[str]:
    """Return the modules that are loaded after an import and a program."""
    program = f"import json, sys, {imported}\n{code}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_import_loads_no_package_of_an_extra_and_few_modules() -> None:
    found = loaded("", "timerstore") - loaded("", "numpy")
    roots = {name.partition(".")[0] for name in found}
    assert not roots & packages(*OF_USERS)
    assert not {name for name in found if name in LATER}
    assert len(found) <= MODULES_MAX, sorted(found)


@pytest.mark.more
def test_import_takes_little_time_after_numpy() -> None:
    """The shortest of several imports of each module counts: other programs disturb few of them."""
    row = re.compile(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", re.MULTILINE)
    cached = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-X", "importtime", "-c", "import numpy, timerstore"]
    shortest: dict[str, int] = {}
    for _ in range(8):
        told = subprocess.run(command, env=cached, capture_output=True, text=True, check=True)
        for micros, name in row.findall(told.stderr):
            shortest[name] = min(int(micros), shortest.get(name, int(micros)))
    beyond_numpy = loaded("", "timerstore") - loaded("", "numpy")
    assert sum(shortest[one] for one in beyond_numpy & shortest.keys()) <= IMPORT_MICROS_MAX


def test_names_that_are_imported_later_are_listed_and_found() -> None:
    code = (
        "import timerstore as t\n"
        "assert {'open_shards', 'ShardedStore', 'shards'} <= set(dir(t))\n"
        "assert set(t.__all__) <= set(dir(t))\n"
        "from timerstore import *\n"
        "assert open_shards is t.open_shards is t.shards.open_shards\n"
        "assert not hasattr(t, 'no_such_name')"
    )
    assert "timerstore.shards" in loaded(code)


ARROW = """
import pyarrow as pa, timerstore.tables
with store() as one:
    one.flush()
    assert one.pull_batch("orders", 0, 0).to_arrow().num_rows > 0
    for table in timerstore.tables.TABLES:
        found = sum(batch.num_rows for batch in timerstore.tables.read(P, table))
        assert found or table != "messages"
shards = P + ".d"
timerstore.open_shards(shards, 2).close()
rows = pa.RecordBatch.from_pydict({"topic": ["t"] * 5, "body": [b"x"] * 5, "deliver_at": [0] * 5})
part = timerstore.shards.stage(shards, "source", 0, "part", [rows])
timerstore.shards.commit(shards, "source", 0, [part])
timerstore.shards.ingest(shards)
with timerstore.open_shards(shards) as one:
    assert one.stats()
"""


def test_arrow_alone_is_enough_for_what_uses_arrow(path: Path) -> None:
    done = run(ARROW, packages(*OF_USERS) - packages("arrow"), path)
    assert done.returncode == 0, done.stderr
