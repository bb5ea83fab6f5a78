"""Command `import`: put the rows of Parquet or JSON-lines files, each once."""

from pathlib import Path
from typing import Any

import click

from timerstore.cli import import_rows
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import config_of, config_option, files_argument, json_option
from timerstore.cli.progress import progress
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural


@click.command("import")
@files_argument("only the process that has the store open can put each row once")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topic", default="", help="The topic of rows without a column topic.")
@click.option("--run-id", help="Name of this import; default: a digest of the file.")
@click.option(
    "--on-invalid",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Whether an invalid row fails the import or is skipped.",
)
@config_option
@json_option
def import_command(
    path: Path,
    files: tuple[Path, ...],
    topic: str,
    run_id: str | None,
    on_invalid: str,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Put the rows of FILES (Parquet or JSON lines), each row exactly once.

    A file named - is standard input. After an interruption, run the same command again: it
    continues. After a completed import the same command adds nothing.

    The columns are topic, body (or body_base64), deliver_at (a time or epoch ms; default: now), key
    or keys, tags, message_id and properties.

    A directory of shards can be open in other processes. The rows are then handed to the owners.
    """
    config = config_of(settings)
    if run_id is not None and len(files) > 1:
        raise click.UsageError("--run-id: wanted one file, got " + str(len(files)))
    for file in files:
        source = import_rows.RowSource(file, topic, skip=on_invalid == "skip", run_id=run_id)
        with (
            stopping() as stop,
            progress(f"importing {file}", of_bytes=False, stop=stop) as on_progress,
        ):
            done = import_rows.import_file(path, config, source, on_progress)
        _write_result(done, as_json=as_json)


def _write_result(one: import_rows.Imported, *, as_json: bool) -> None:
    if as_json:
        emit(one._asdict())
        return
    if one.is_replay:
        say(f"{one.file}: already imported, {plural(one.rows, 'row')} (run id {one.run_id})")
    else:
        say(f"{one.file}: put {plural(one.rows, 'row')} (run id {one.run_id})")
    if one.skipped:
        note(f"{one.file}: {plural(one.skipped, 'row')} skipped, the first: {one.first_skipped}")
