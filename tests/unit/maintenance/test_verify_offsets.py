"""verify: committed offsets past the end of a queue, and a file that cannot be read."""

from pathlib import Path

import pytest

from tests.support.bench import Bench


@pytest.fixture
def read(bench: Bench) -> Path:
    """Two queues, read to the end; the path of the file."""
    for k in range(4):
        bench.store.put("t", b"%d" % k, queue_id=k % 2)
    bench.turn()
    with bench.store.consumer("t", "g") as consumer:
        consumer.poll()
        consumer.commit()
    return bench.root / "config/consumerOffset.json"


def test_verify_counts_committed_offsets(bench: Bench, read: Path) -> None:
    report = bench.store.verify()
    assert report.clean
    assert report.counts["committed offsets"] == 2


def test_verify_reports_offset_past_queue_end(bench: Bench, read: Path) -> None:
    text = read.read_text().rstrip()  # without its seal
    read.write_text(text.replace("{0:2,1:2", "{0:2,1:3,2:1"))
    problems = bench.store.verify().problems
    assert [one.what for one in problems] == [
        "committed offset of group g, topic t queue 1",
        "committed offset of group g, topic t queue 2",
    ]
    assert [(one.where, one.wanted, one.got) for one in problems] == [
        (str(read), "at most 2", "3"),
        (str(read), "at most 0", "1"),
    ]
    read.write_text(text)


def test_verify_ignores_offsets_of_unknown_topics(bench: Bench, read: Path) -> None:
    text = read.read_text().rstrip()  # without its seal
    read.write_text(
        text.replace('"t@g"', '"u@g":{0:7\n\t\t},\n\t\t"strange":{0:7\n\t\t},\n\t\t"t@g"')
    )
    assert bench.store.verify().clean
    bench.reopen()
    assert bench.store.committed("u", "g") == {0: 7}
    assert '"strange":{0:7' in read.read_text()


def test_verify_reports_unreadable_offsets_file(bench: Bench, read: Path) -> None:
    text = read.read_text().rstrip()  # without its seal
    read.write_text(text[:-5])
    (problem,) = bench.store.verify().problems
    assert problem.what == "committed offsets"
    assert problem.where == str(read)
    read.write_text(text)
