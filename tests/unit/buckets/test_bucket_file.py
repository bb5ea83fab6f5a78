"""Objects as files: every read returns the bytes of the object that was listed."""

import io
import os
import pickle

import pytest

from tests.support.bucket.fault_proxy import Fault, FaultProxy
from timerstore._engine.buckets import Bucket, BucketUrl, location_of
from timerstore._engine.buckets import bucket as bucket_module
from timerstore._engine.buckets.bucket import BucketFile, find_files
from timerstore.errors import BucketError

DATA = bytes(range(256)) * 5


def url_of(text: str) -> BucketUrl:
    found = location_of("path", text)
    assert isinstance(found, BucketUrl)
    return found


@pytest.fixture
def one(prefix: str) -> BucketFile:
    Bucket(url_of(prefix)).put("d/x.bin", DATA)
    (found,) = find_files(url_of(f"{prefix}/d/x.bin"))
    return found


@pytest.mark.parametrize("part_bytes", [7, 100, 1 << 20])
def test_stream_reads_as_a_local_file(
    one: BucketFile, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", part_bytes)
    local, stream = io.BytesIO(DATA), pickle.loads(pickle.dumps(one)).open()
    for place, whence, count in [
        (0, os.SEEK_SET, 3), (10, os.SEEK_CUR, 300), (-8, os.SEEK_END, 100), (5000, os.SEEK_SET, 1),
        (0, os.SEEK_END, 1), (1, os.SEEK_SET, 0), (0, os.SEEK_SET, -1),
    ]:  # fmt: skip
        assert stream.seek(place, whence) == local.seek(place, whence)
        assert stream.read(count) == local.read(count)
        assert stream.tell() == local.tell()


def test_find_files_returns_one_object_or_those_below(prefix: str, one: BucketFile) -> None:
    assert str(one) == f"{prefix}/d/x.bin"
    Bucket(url_of(prefix)).put("e.bin", b"e")
    found = [str(file) for file in find_files(url_of(prefix))]
    assert found == [f"{prefix}/d/x.bin", f"{prefix}/e.bin"]
    assert find_files(url_of(f"{prefix}/none")) == []


def test_replaced_or_removed_object_is_an_error(prefix: str, one: BucketFile) -> None:
    stream = one.open()
    assert stream.read(4) == DATA[:4]
    bucket = Bucket(url_of(prefix))
    bucket.put("d/x.bin", DATA[::-1])
    with pytest.raises(BucketError, match=r"d/x\.bin"):
        stream.read(4)
    bucket.delete(["d/x.bin"])
    with pytest.raises(BucketError, match="it was removed"):
        stream.read(4)


def test_reads_are_repeated_while_the_service_fails(
    one: BucketFile, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.fail(Fault("error 503", "GET", "x.bin", 2), Fault("cut answer", "GET", "x.bin", 1))
    assert one.open().read(len(DATA)) == DATA
    assert len(proxy.happened) == 3
