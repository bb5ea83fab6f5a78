"""Command `ingest`: append rows that other processes have committed to closed shards."""

from pathlib import Path

import click

from timerstore.cli.opening import require
from timerstore.cli.output import emit, say
from timerstore.cli.params import files_argument, json_option
from timerstore.cli.text import plural
from timerstore.shards import ingest
from timerstore.shards.kinds import Kind


@click.command("ingest")
@files_argument("a server serves one store, and this is for shards")
@click.option(
    "--from",
    "ingest_from",
    help="Also ingest from this bucket, such as s3://bucket/orders. Settings of the service are "
    "those of the environment.",
)
@json_option
def ingest_command(path: Path, ingest_from: str | None, as_json: bool) -> None:
    """Ingest rows that other processes have committed for a directory of shards.

    Shards that a process has open are left to it. With --from, the first call makes the bucket
    ready for writers.
    """
    require(path, Kind.SHARDS)
    report = ingest(path, ingest_from=ingest_from)
    if as_json:
        emit({"rows": report.row_count, "locked_shards": list(report.locked)})
        return
    say(f"ingested {plural(report.row_count, 'row')} into {path}")
    if report.locked:
        say(f"  open elsewhere, and left to their owners: {', '.join(map(str, report.locked))}")
