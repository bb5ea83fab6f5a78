from timerstore._engine.format import timer_metrics_json
from timerstore._engine.format.timer_metrics_json import TimerMetrics, TopicCount

TEXT = (
    b'{"dataVersion":{"counter":1701,"stateVersion":0,"timestamp":1795254577026},'
    b'"timingCount":{"orders":{"count":350,"timeStamp":1795254577026},'
    b'"reminders":{"count":339,"timeStamp":1795254577026}}}'
)


def test_brokers_file_round_trips_byte_by_byte():
    metrics = timer_metrics_json.read(TEXT, None)
    assert metrics.counts["orders"] == TopicCount(350, 1_795_254_577_026)
    assert metrics.version.counter == 1701
    assert timer_metrics_json.write(metrics) == TEXT


def test_missing_file_is_empty_and_older_copy_replaces_a_damaged_one():
    assert timer_metrics_json.read(None, None) == TimerMetrics()
    assert timer_metrics_json.read(b"{", TEXT).counts["reminders"].pending_count == 339


def test_characters_outside_ascii_are_escaped():
    metrics = TimerMetrics(counts={"é": TopicCount(1, 2)})
    assert b'"\\u00e9":{' in timer_metrics_json.write(metrics)
    assert timer_metrics_json.read(timer_metrics_json.write(metrics), None) == metrics
