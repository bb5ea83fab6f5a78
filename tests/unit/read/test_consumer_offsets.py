"""Consumer: the offsets on disk, including a broker's."""

from pathlib import Path

import pytest

from tests.support.bench import Bench
from timerstore import (
    CorruptError,
)

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "consumer_offsets"


def test_broker_offsets_are_continued_and_foreign_entries_kept(six: Bench) -> None:
    six.close()
    path = six.root / "config/consumerOffset.json"
    text = (FIXTURES / "5.3.3.json").read_text()
    path.write_text(text.replace("orders@audit", "t@audit").replace("{2:5", "{2:1"))
    six.open()
    assert six.store.committed("t", "audit") == {2: 1}
    assert path.read_text() == text.replace("orders@audit", "t@audit").replace("{2:5", "{2:1")
    consumer = six.store.consumer("t", "audit")
    assert len(consumer.poll()) == 5
    assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    written = path.read_text()
    for name in ("%RETRY%billing@a|b%c", "reminders@audit", "orders@billing", "reminders@zeta"):
        at, end = text.index(name), text.index("}", text.index(name))
        assert text[at:end] in written
    assert '"t@audit":{0:2,1:2,2:2' in written


def test_offsets_past_the_end_are_reduced_on_opening(six: Bench) -> None:
    """It is durable before the first append; otherwise new messages would be skipped."""
    consumer = six.store.consumer("t", "g")
    consumer.poll()
    consumer.commit()
    six.close()
    path = six.root / "config/consumerOffset.json"
    text = path.read_text().rstrip()  # without its checksum, as after an edit by hand
    path.write_text(text.replace("{0:2,1:2,2:2", "{0:3,1:1,2:99,3:7"))
    six.open()
    assert six.store.committed("t", "g") == {0: 2, 1: 1, 2: 2, 3: 0}
    assert "{0:2,1:1,2:2,3:0" in path.read_text()
    six.store.put("t", b"next", queue_id=2)
    six.store.put("t", b"first of its queue", queue_id=3)
    six.turn()
    found = six.store.consumer("t", "g").poll()
    assert [m.body for m in found] == [b"4", b"next", b"first of its queue"]


def test_unreadable_offsets_prevent_opening(six: Bench) -> None:
    six.store.consumer("t", "g").poll()
    six.close()
    path = six.root / "config/consumerOffset.json"
    path.write_text('{"offsetTable":{"t@g":{0:')
    with pytest.raises(CorruptError, match=r"committed offsets.*consumerOffset\.json.*every group"):
        six.open()
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:1}}}')
    six.open()
    assert six.store.committed("t", "g") == {0: 1}
