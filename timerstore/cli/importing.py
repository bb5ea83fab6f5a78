"""import: rows of files, each once."""

from pathlib import Path
from typing import Any

import click

from timerstore.cli import import_rows
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import config_of, config_option, json_option, path_argument
from timerstore.cli.progress import progress
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural


@click.command("import")
@path_argument
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topic", default="", help="Of all rows, where they have no column topic.")
@click.option("--run-id", help="Name of this import; default: made of the file's bytes.")
@click.option(
    "--on-invalid",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="A row that the store would not take.",
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
    """Put the rows of FILES, each row exactly once: Parquet, or JSON lines (- is standard input).

    Cut off anywhere, the same command goes on; given again, it adds nothing. Columns: topic, body
    (or body_base64), deliver_at (a time, or epoch ms; none: now), key or keys, tags, message_id,
    properties.

    A directory of shards may be open elsewhere: rows are handed to its owners.
    """
    config = config_of(settings)
    if run_id is not None and len(files) > 1:
        raise click.UsageError("--run-id: names one file, got " + str(len(files)))
    for file in files:
        source = import_rows.Source(file, topic, skip=on_invalid == "skip", run_id=run_id)
        with stopping() as stop, progress(f"importing {file}", of_bytes=False, stop=stop) as tell:
            done = import_rows.import_file(path, config, source, tell)
        _tell_import(done, as_json=as_json)


def _tell_import(one: import_rows.Imported, *, as_json: bool) -> None:
    if as_json:
        emit(one._asdict())
        return
    if one.is_replay:
        say(f"{one.file}: {plural(one.rows, 'row')} were there already (run id {one.run_id})")
    else:
        say(f"{one.file}: put {plural(one.rows, 'row')} (run id {one.run_id})")
    if one.skipped:
        note(f"{one.file}: {plural(one.skipped, 'row')} left out, the first: {one.first_skipped}")
