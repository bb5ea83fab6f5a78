"""Tables of the guides on operations and Spark: each has the loggers, versions and columns that the
code has, and no others."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.snippets import GUIDES, ROOT
from timerstore import ConfigError
from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.shards.row_columns import COLUMNS, check_columns
from timerstore.shards.write_options import WriteOptions

OPERATIONS = (GUIDES / "operations.md").read_text()
SPARK = (GUIDES / "spark.md").read_text()
MODULES = sorted((ROOT / "timerstore").rglob("*.py"))


def rows(page: str, head: str) -> list[list[str]]:
    """Return the cells of each row of the table with this first line."""
    text = page.split(f"\n{head}\n")[1].split("\n\n", maxsplit=1)[0]
    return [re.split(r" *\| *", line.strip())[1:-1] for line in text.splitlines()[1:]]


def names(cell: str) -> list[str]:
    """Return the names in code font."""
    return re.findall(r"`([^`]+)`", cell)


def name_of(path: Path) -> str:
    """Return the name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


# --- operations.md: loggers ---


def loggers() -> Iterator[str]:
    """Yield the name in each call of getLogger."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                (name,) = node.args
                is_module = isinstance(name, ast.Name) and name.id == "__name__"
                yield name_of(path) if is_module else ast.literal_eval(name)


def test_loggers_of_the_page_are_those_of_the_code() -> None:
    found = [names(cells[0]) for cells in rows(OPERATIONS, "| logger | level | logs |")]
    assert sorted(found) == [[name] for name in sorted(set(loggers()))]


# --- operations.md: format versions ---

VERSION_NAMES = {"FORMAT", "_FORMAT", "MAGIC", "_MAGIC", "PROTOCOL_VERSION", "PLAN_FORMAT"}
BROKER_FORMATS = {"timerstore._engine.format.filler_record"}


def versions() -> dict[str, Any]:
    """Return the version that each module of a format of ours defines."""
    found = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if {ast.unparse(one) for one in targets} & VERSION_NAMES:
                    found[name_of(path)] = ast.literal_eval(node.value)
    return {name: found[name] for name in found if name not in BROKER_FORMATS}


def test_format_versions_of_the_page_are_those_of_the_code() -> None:
    known = versions()

    def version(module: str) -> Any:
        found = known.pop(f"timerstore.{module}")
        return found.decode() if isinstance(found, bytes) else found

    cluster = version("shards.cluster")
    assert cluster == version("shards.manifest")
    state = version("_engine.format.state_sector").to_bytes(4, "little").decode()
    wheel, far = version("_engine.format.wheel_checks"), version("_engine.format.far_table")
    offsets, plan = version("spark.offsets"), version("spark.plan")
    wanted = {
        "`timerstore/watermark`, of every store": (
            f"magic `{version('_engine.format.watermark')}`"
        ),
        "`config/timerstoreRecurring.json`": f"`format` {version('_engine.format.recurring_json')}",
        "records of the topic of ingest": f"`format` {version('_engine.format.ledger_json')}",
        "`cluster.json` of shards, manifests below `_ingest`": f"`format` {cluster}",
        "staged Arrow files below `_ingest`": version("shards.staged_files"),
        "`backup.json` of a backup": f"`format` {version('_engine.format.backup_json')}",
        "`_lake.json` and records of the cold lake": f"`format` {version('spark.jobs.lake')}",
        "`timerstore/state`, `wheel`, `far-0` and `far-1`": f"magics `{state}`, `{wheel}`, `{far}`",
        "`timerstore/staging`": f"magic `{version('_engine.log.staging')}`",
        "protocol of a server": f"version {version('net.wire_messages')}",
        "offsets of a Spark stream; tasks of a Spark read": (
            f"`format` {offsets}; plan format {plan}"
        ),
    }
    head = "| file | version | a release that does not know it |"
    assert {cells[0]: cells[1] for cells in rows(OPERATIONS, head)} == wanted
    assert known == {}, "formats without a row"


# --- spark.md: columns ---


def columns(head: str) -> dict[str, dict[str, str]]:
    """Return the type of each column, by the first cell of a table whose first cells are merged."""
    found: dict[str, dict[str, str]] = {}
    for what, column, kind in rows(SPARK, head):
        section = found.setdefault(what or list(found)[-1], {})
        for name in names(column):
            assert name not in section, name
            section[name] = kind
    return found


def inputs(what: str) -> dict[str, str]:
    """Return the columns of an input of a job."""
    return columns("| job and input | column | type |")[what]


def test_columns_with_a_meaning_are_those_of_the_tables() -> None:
    for name, *_ in rows(SPARK, "| column | meaning |"):
        table, first = names(name)[0].split(".")
        known = {one.name for one in TABLES[table]}
        assert {first, *names(name)[1:]} <= known, name


def test_tables_of_the_page_are_those_of_the_code() -> None:
    found = [names(cells[0]) for cells in rows(SPARK, "| table | one row for | read from |")]
    assert found == [[name] for name in TABLES]


def test_columns_of_a_write_are_those_of_the_code() -> None:
    pa = pytest.importorskip("pyarrow")
    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "long": pa.int64(),
        "int": pa.int32(),
        "timestamp with time zone": pa.timestamp("us", "UTC"),
        "timestamp": pa.timestamp("us"),
        "list of strings": pa.list_(pa.string()),
        "map of strings": pa.map_(pa.string(), pa.string()),
    }

    def accepted(name: str) -> set[str]:
        """Return the types of a column that a write takes."""
        return {kind for kind, one in kinds.items() if not wrong(pa.schema([(name, one)]))}

    def wrong(schema: Any) -> bool:
        with pytest.raises(ConfigError) as error:  # other columns are missing
            check_columns(schema, WriteOptions())
        return any(one.startswith("column ") for one in error.value.problems)

    found: list[str] = []
    for column, kind in rows(SPARK, "| column | type |"):
        cells = [one for one in kind.split("; ") if not one.startswith(("optional", "the option"))]
        told = [{k for k in kinds if re.search(rf"\b{k}\b(?! with)", one)} for one in cells]
        takes = [accepted(name) for name in names(column)]
        found += names(column)
        assert told == (takes if len(told) > 1 else [set().union(*takes)]), column
    assert sorted(found) == sorted(COLUMNS)


def test_columns_of_parquet_inputs_are_the_options_of_the_code() -> None:
    pytest.importorskip("pyspark")
    from timerstore.spark.jobs import audit, bulk_schedule, cold_append

    def told(job: Any) -> set[str]:
        """Return the default of each option that names a column; the option if it has none."""
        options = {one.opts[0]: one.default for one in job.options}
        return {value or one for one, value in options.items() if one.endswith("-column")}

    assert set(inputs("`bulk-schedule` and `cold-append`, `--input`")) == told(cold_append.JOB)
    for what in (
        "`bulk-schedule` and `cold-append`, `--input`",
        "`bulk-schedule --fast`, `--input`",
    ):
        assert set(inputs(what)) == told(bulk_schedule.JOB), what
    assert set(inputs("`audit`, `--scheduled`")) == told(audit.JOB)


def test_columns_of_a_lake_and_an_export_are_those_of_the_code() -> None:
    pytest.importorskip("pyspark")
    from timerstore.spark.jobs import export, lake, pending_messages, replay

    assert set(inputs("`promote`, files of the lake")) == set(lake.COLUMNS)
    kinds = dict(one.split() for one in export.SCHEMAS["messages"].split(", "))
    code = inspect.getsource(replay.build) + inspect.getsource(pending_messages.rows_to_put)
    read = set(re.findall(r'"(\w+)"', code)) & set(kinds)
    words = {"long in epoch milliseconds": "long", "map of strings": "map<string,string>"}
    told = inputs("`replay`, `--input`: an `export` of `messages`")
    assert {name: words.get(kind, kind) for name, kind in told.items()} == {
        name: kinds[name] for name in read
    }


def test_tombstones_need_the_column_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from timerstore.spark.jobs.promote import read_tombstones

    (name,) = inputs("`promote`, `_tombstones/*.parquet` of the lake")
    path = tmp_path / "one.parquet"
    for given in (name, "another"):
        pq.write_table(pa.table({given: ["id"]}), path)
        if given == name:
            assert read_tombstones([path]) == {"id"}
        else:
            with pytest.raises(ConfigError, match=name):
                read_tombstones([path])


def test_inputs_of_the_page_are_tested_here() -> None:
    """The rows of a job that is added need a test."""
    jobs = columns("| job and input | column | type |")
    assert len(jobs) == 7
    assert inputs("`bulk-schedule --sql` and `stream-schedule`, the rows") == {}
