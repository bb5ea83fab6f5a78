"""Objects in a bucket, with a service that fails."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket import s3_server
from tests.support.bucket.fault_proxy import Fault, FaultProxy
from tests.support.bucket.uploads import bucket_of
from timerstore import BucketError, ClosedError, ConfigError
from timerstore._engine.buckets import Bucket
from timerstore._engine.buckets.bucket import PART_BYTES, obstore
from timerstore._engine.buckets.bucket_url import CLIENT_NAMES
from timerstore._engine.storage.disk import Disk


def bucket_at(prefix: str, proxy: FaultProxy, *, retry_s: float = 10.0) -> Bucket:
    return bucket_of(prefix, s3_server.options(proxy.endpoint), retry_s=retry_s)


@pytest.fixture
def bucket(prefix: str, proxy: FaultProxy) -> Bucket:
    return bucket_at(prefix, proxy)


def test_objects_are_put_listed_read_and_removed(bucket: Bucket) -> None:
    assert bucket.get("a/b") is None
    assert bucket.head("a/b") is None
    bucket.put("a/b", b"12345")
    bucket.put("a%2Ec~d/e", b"")
    bucket.put("ab", b"1")
    assert bucket.get("a/b") == b"12345"
    found = bucket.head("a/b")
    assert found is not None
    assert (found.path, found.bytes) == ("a/b", 5)
    assert [one.path for one in bucket.list()] == ["a%2Ec~d/e", "a/b", "ab"]
    assert [one.path for one in bucket.list("a")] == ["a/b"]
    bucket.delete(["a/b", "absent", "ab"])
    assert [one.path for one in bucket.list()] == ["a%2Ec~d/e"]
    assert bucket.list("none") == []


def test_absent_object_does_not_keep_the_others(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of local files reports an absent object as services of Google do."""
    local = obstore().store.LocalStore(tmp_path)
    monkeypatch.setattr("timerstore._engine.buckets.bucket._store_of", lambda *_: local)
    bucket = bucket_of(prefix)
    names = [f"{number:03}" for number in range(200)]
    for name in names:
        bucket.put(name, b"1")
    bucket.delete(["absent", *names[:100], "gone", *names[100:-1]])
    assert [one.path for one in bucket.list()] == names[-1:]
    bucket.delete(["absent"])


def test_create_ends_when_the_service_does_not_answer(prefix: str, proxy: FaultProxy) -> None:
    """A create does not multiply the time for which obstore repeats each request."""
    bucket = bucket_at(prefix, proxy, retry_s=0.5)
    proxy.fail(Fault("error 503", "PUT", count=10_000))
    with pytest.raises(BucketError, match="create: "):
        bucket.create("x", b"1")
    assert sum(one.startswith("GET") for one in proxy.requests) <= 2  # one for each try


def test_create_succeeds_once(bucket: Bucket) -> None:
    assert bucket.create("x", b"1")
    assert not bucket.create("x", b"2")
    assert bucket.get("x") == b"1"


@pytest.mark.parametrize("_number", range(3))
def test_create_by_many_threads_succeeds_for_one(
    prefix: str, proxy: FaultProxy, _number: int
) -> None:
    barrier = threading.Barrier(8)
    won: list[int] = []

    def race(number: int) -> None:
        bucket = bucket_at(prefix, proxy)
        barrier.wait(60)
        if bucket.create("x", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(won) == 1
    assert bucket_at(prefix, proxy).get("x") == b"%d" % won[0]


@pytest.mark.parametrize("kind", ["error 500", "error 503", "lost answer", "cut upload"])
def test_create_is_repeated_after_an_error(bucket: Bucket, proxy: FaultProxy, kind: str) -> None:
    proxy.fail(Fault(kind, "PUT", count=2))
    assert bucket.create("x", b"12345678")
    assert proxy.happened
    assert bucket.get("x") == b"12345678"
    assert not bucket.create("x", b"2")


@pytest.mark.parametrize("kind", ["error 409", "lost answer"])
def test_create_that_lost_tells_so_in_spite_of_errors(
    bucket: Bucket, proxy: FaultProxy, kind: str
) -> None:
    bucket.put("x", b"1")
    proxy.fail(Fault(kind, "PUT"))
    assert not bucket.create("x", b"2")
    assert bucket.get("x") == b"1"


def test_create_after_conflict_without_object_is_repeated(
    bucket: Bucket, proxy: FaultProxy
) -> None:
    """S3 answers 409 if another request for the name is under way, whatever its result is."""
    proxy.fail(Fault("error 409", "PUT"))
    assert bucket.create("x", b"1")


def test_late_request_does_not_replace_what_was_created(
    prefix: str, bucket: Bucket, proxy: FaultProxy
) -> None:
    gate = threading.Event()
    proxy.fail(Fault("late", "PUT", gate=gate))
    results: list[bool] = []
    slow = threading.Thread(target=lambda: results.append(bucket.create("x", b"slow")))
    arrived = threading.Event()
    proxy.on_request = lambda _request: arrived.set()
    slow.start()
    assert arrived.wait(60)
    assert bucket_at(prefix, proxy).create("x", b"fast")
    gate.set()
    slow.join()
    assert results == [False]
    assert bucket.get("x") == b"fast"


def test_service_without_conditional_puts_is_refused(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.check_create("probe")
    proxy.fail(Fault("ignored condition", "PUT", count=9))
    with pytest.raises(ConfigError, match=r"If-None-Match.*wanted a service with conditional puts"):
        bucket.check_create("probe")


@pytest.mark.parametrize("kind", ["error 503", "cut answer", "no answer"])
def test_download_is_complete_or_an_error(
    bucket: Bucket, proxy: FaultProxy, tmp_path: Path, kind: str
) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256 + 10)
    bucket.put("big", data)
    one = bucket.head("big")
    assert one is not None
    proxy.fail(Fault(kind, "GET", "big", count=2))
    file = Disk().open(tmp_path / "copy", create=True)
    assert bucket.download(one, file)
    assert (tmp_path / "copy").read_bytes() == data
    assert len(proxy.happened) == 2


def test_download_of_replaced_object_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("x", b"old")
    one = bucket.head("x")
    assert one is not None
    bucket.put("x", b"new")
    with pytest.raises(BucketError):
        bucket.download(one, Disk().open(tmp_path / "copy", create=True))
    bucket.delete(["x"])
    assert not bucket.download(one, Disk().open(tmp_path / "copy", create=True))


def test_download_stops_between_parts(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("big", bytes(PART_BYTES + 1))
    one = bucket.head("big")
    assert one is not None
    with pytest.raises(ClosedError):
        bucket.download(one, Disk().open(tmp_path / "copy", create=True), lambda: True)


def test_permission_error_is_not_retryable(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.fail(Fault("error 403", "GET", count=9))
    with pytest.raises(BucketError) as caught:
        bucket.get("x")
    assert not caught.value.retryable
    assert str(caught.value).count("SlowDown") == 1
    assert "<" not in str(caught.value)


def test_create_without_permission_is_not_repeated(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.fail(Fault("error 403", "PUT", count=9))
    with pytest.raises(BucketError, match="create: "):
        bucket.create("x", b"1")
    assert len(proxy.happened) == 1


def test_unreachable_service_is_a_retryable_error(prefix: str) -> None:
    bucket = bucket_of(prefix, s3_server.options("http://127.0.0.1:9"), retry_s=0.1)
    for call in (lambda: bucket.get("x"), lambda: bucket.list(), lambda: bucket.put("x", b"")):
        with pytest.raises(BucketError, match=r"127\.0\.0\.1:9") as caught:
            call()
        assert caught.value.retryable


def test_unknown_option_is_rejected_without_its_value(prefix: str) -> None:
    with pytest.raises(ConfigError, match="secret_acess_key") as caught:
        bucket_of(prefix, {"secret_acess_key": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["aws_s3_express", "connect_timeout", "user_agent"])
@pytest.mark.parametrize(
    "value", ["hunter2", "Hunter2\n", 'a"hunter2"b', "a\n\nDebug source hunter2"]
)
def test_wrong_option_is_rejected_without_its_value(prefix: str, name: str, value: str) -> None:
    value += "\n"  # is no value of a header
    with pytest.raises(ConfigError, match=f"the given options are .*{name}") as caught:
        bucket_of(prefix, {"region": "x", name: value})
    assert "hunter2" not in str(caught.value).lower()


@pytest.mark.parametrize("name", sorted(CLIENT_NAMES))
def test_settings_of_connections_are_used(prefix: str, name: str) -> None:
    """obstore panics if they are among those of the service."""
    with suppress(ConfigError):  # as the value fits some of them only
        bucket_of(prefix, {name.upper(): "5s"})


def test_connection_settings_replace_the_usual_ones(prefix: str, proxy: FaultProxy) -> None:
    options = s3_server.options(proxy.endpoint)
    assert bucket_of(prefix, options | {"allow_http": "true", "timeout": "9s"}).list() == []
    bucket = bucket_of(prefix, options | {"allow_http": "false"}, retry_s=0.1)
    with pytest.raises(BucketError):
        bucket.list()


@pytest.mark.parametrize("wrong", ["region=x", {"region": 5}, {"region": None}, {5: "hunter2"}])
def test_options_that_are_not_text_are_rejected(prefix: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="storage_options: wanted "):
        bucket_of(prefix, wrong)


def test_bucket_shows_no_credentials(bucket: Bucket) -> None:
    assert s3_server.SECRET not in repr(vars(bucket))


def test_service_time_is_that_of_the_service(bucket: Bucket) -> None:
    first = bucket.now_ms("clock")
    assert first <= bucket.now_ms("clock")
    found = bucket.head("clock")
    assert found is not None
    assert found.bytes == 0
