"""Objects below one URL of a bucket.

Thread safety: any thread.
Invariants:
    1. `create` succeeds for exactly one of several callers with different data, also if an answer
       was lost and the request is repeated.
    2. An object is complete or absent: a put that was interrupted leaves nothing visible.
Raises: BucketError: the service does not answer, or rejects a request. ConfigError: an option is
    unknown, or obstore is not installed. Texts have no credentials.
See also: docs/decisions/0015-object-storage.md.
"""

import importlib
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import IO, Any, NamedTuple, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.buckets.bucket_url import BucketUrl, split_client, without_values
from timerstore._engine.storage.disk import File
from timerstore.errors import BucketError, ClosedError, ConfigError, TimerStoreError

# --- obstore import ---
# Import obstore, which only buckets need.
#
# Raises: ConfigError, with the package to install.


@cache
def obstore() -> Any:
    """Return the module obstore, with `store` and `exceptions`."""
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "buckets need obstore, which is not installed: pip install '.[cloud]' in a checkout"
        ) from error


# --- bucket ---


PART_BYTES = 8 << 20
"""Larger objects are sent and read in parts of this size, so that each request is short."""

_REQUESTS = 8  # at a time
_TIMEOUT_S = 20
RETRY_S = 45
"""How long a request is repeated, by default."""
_TAG = {name: re.compile(rf"<{name}>([^<]*)</{name}>") for name in ("Code", "Message")}
_CREATE_TRIES = 6
_CREATE_PAUSE_S = 0.2

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoredObject(NamedTuple):
    """One object: its path below the URL, and its state by the clock of the service."""

    path: str
    bytes: int
    modified_ms: int
    e_tag: str


class Bucket(NotCopyable):
    """The objects below one URL."""

    def __init__(
        self,
        url: BucketUrl,
        options: Mapping[str, str] | None = None,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        """Connect at the first request.

        options: settings of obstore for this service, such as `endpoint`, `region`,
            `access_key_id`; by default those of the environment, as the tools of the service use
            them. Values are not logged.

        retry_s: how long a request that fails is repeated, in seconds.
        """
        self.url = url
        self._retry_s = retry_s
        self._store = _store_of(url, options, retry_s)

    def where(self, path: str) -> str:
        """Return the URL of an object."""
        return str(self.url.below(path))

    # --- one object ---

    def get(self, path: str) -> bytes | None:
        """Return an object, or None if it is absent."""
        try:
            return bytes(obstore().get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except _errors() as error:
            raise self._failed("get", path, error) from error

    def head(self, path: str) -> StoredObject | None:
        """Return the state of an object, or None if it is absent."""
        try:
            return _stored(obstore().head(self._store, path))
        except FileNotFoundError:
            return None
        except _errors() as error:
            raise self._failed("head", path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Create an object; return False if the name is taken by other data.

        A request whose answer was lost may have succeeded. So the same data count as created. No
        try begins after `retry_s`. A try has a put and a get, which are repeated for so long each.
        """
        last: Exception | None = None
        until_s = time.monotonic() + self._retry_s
        for number in range(_CREATE_TRIES):
            if number:
                time.sleep(_CREATE_PAUSE_S * 2**number)
            try:
                obstore().put(self._store, path, data, mode="create", use_multipart=False)
            except (FileNotFoundError, obstore().exceptions.PermissionDeniedError) as error:
                raise self._failed("create", path, error) from error
            except _errors() as error:
                last = error
            else:
                return True
            found = self.get(path)
            if found is not None:
                return found == data
            # Either the request failed, or it lost against another that was removed since.
            if time.monotonic() > until_s:
                break
        assert last is not None, "a try that did not fail has returned"
        raise self._failed("create", path, last) from last

    def check_create(self, probe: str) -> None:
        """Raise ConfigError if the service replaces an object that `create` must not replace."""
        self.put(probe, b"1")
        if self.create(probe, b"2"):
            raise ConfigError(
                f"{self.url}: the service replaced an object although the request has "
                "If-None-Match: *; wanted a service with conditional puts, or rows could be lost"
            )

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        """Create or replace an object."""
        try:
            obstore().put(self._store, path, data, chunk_size=PART_BYTES, max_concurrency=4)
        except _errors() as error:
            raise self._failed("put", path, error) from error

    def copy(self, path: str, target: str) -> None:
        """Copy an object of at most 5 GB within the service. Replace the target."""
        try:
            obstore().copy(self._store, path, target)
        except _errors() as error:
            raise self._failed("copy", path, error) from error

    def download(
        self,
        one: StoredObject,
        target: File,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Copy an object to a file. Return False if it is absent.

        Raises:
            BucketError: as for every request, or the object has other bytes than `one` says.
            ClosedError: `is_stopped` returned True between two parts.
        """
        for begin, end in _parts(0, one.bytes):
            if is_stopped():
                raise ClosedError("a download was stopped; the next one begins again")
            data = self._range(one, begin, end)
            if data is None:
                return False
            target.write(data, begin)
        return True

    def read(self, one: StoredObject, begin: int, end: int) -> bytes:
        """Return the bytes of an object from `begin` to `end`.

        Raises:
            BucketError: as for `download`, or the object is absent.
        """

        def part(ends: tuple[int, int]) -> bytes:
            data = self._range(one, *ends)
            if data is None:
                raise BucketError("object: it was removed", where=self.where(one.path))
            return data

        return b"".join(in_parallel(part, _parts(begin, end)))

    def _range(self, one: StoredObject, begin: int, end: int) -> bytes | None:
        options: dict[str, Any] = {"range": (begin, end)}
        if one.e_tag:
            options["if_match"] = one.e_tag
        try:
            data = bytes(obstore().get(self._store, one.path, options=options).bytes())
        except FileNotFoundError:
            return None
        except _errors() as error:
            raise self._failed("get", one.path, error) from error
        if len(data) != end - begin:
            raise BucketError(
                "object: it is short",
                where=self.where(one.path),
                wanted=f"{one.bytes} bytes",
                got=begin + len(data),
            )
        return data

    # --- several objects ---

    def list(self, prefix: str = "") -> list[StoredObject]:
        """Return the objects below a prefix, by path."""
        try:
            found = [
                _stored(one)
                for chunk in obstore().list(self._store, prefix=prefix or None)
                for one in chunk
            ]
        except _errors() as error:
            raise self._failed("list", prefix, error) from error
        return sorted(found)

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects. An absent object is no error."""
        for begin in range(0, len(paths), 1000):
            chunk = paths[begin : begin + 1000]
            try:
                self._delete(chunk)
            except FileNotFoundError:  # some services report it, and keep the others
                in_parallel(self._delete_one, chunk)

    def _delete_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._delete([path])

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            obstore().delete(self._store, [*paths])
        except FileNotFoundError:
            raise
        except _errors() as error:
            raise self._failed("delete", paths[0], error) from error

    def now_ms(self, probe: str) -> int:
        """Return the time of the service, in ms since 1970, by writing an object `probe`."""
        self.put(probe, b"")
        found = self.head(probe)
        if found is None:
            raise BucketError("object: it was removed", where=self.where(probe))
        return found.modified_ms

    def _failed(self, what: str, path: str, error: Exception) -> TimerStoreError:
        found = obstore().exceptions
        is_final = isinstance(
            error, found.PermissionDeniedError | found.UnauthenticatedError | FileNotFoundError
        )
        return BucketError(
            f"{what}: {_text_of(error)}", where=self.where(path), retryable=not is_final
        )


def _parts(begin: int, end: int) -> list[tuple[int, int]]:
    return [(one, min(one + PART_BYTES, end)) for one in range(begin, end, PART_BYTES)]


def in_parallel(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call for several items at a time. Return the results in the order of the items."""
    every = list(items)
    if len(every) < 2:
        return [call(one) for one in every]
    with ThreadPoolExecutor(min(_REQUESTS, len(every)), thread_name_prefix="bucket") as pool:
        return list(pool.map(call, every))


def _store_of(url: BucketUrl, options: Mapping[str, str] | None, retry_s: float) -> Any:
    service, client = split_client(options)
    # An http: endpoint is used only if a setting names one.
    usual = {"timeout": f"{_TIMEOUT_S}s", "connect_timeout": "5s", "allow_http": True}
    try:
        return obstore().store.from_url(
            str(url),
            config=service,
            client_options=usual | client,
            retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=retry_s)},
        )
    except _errors() as error:
        names = ", ".join([*service, *client]) or "none"
        told = without_values(_text_of(error), service | client)
        raise ConfigError(f"{url}: {told}; the given options are {names}") from None


def _text_of(error: Exception) -> str:
    """Return the text without the debug form, which repeats it. Of the service's XML, which may
    name keys, return the code and the message only.
    """
    text = str(error).partition("\n\nDebug source")[0].strip()
    before, _, xml = text.partition("<")
    told = (_TAG[name].search(xml) for name in ("Code", "Message"))
    return before.strip() + " ".join(["", *(found[1] for found in told if found is not None)])


def _stored(found: Any) -> StoredObject:
    modified_ms = int(found["last_modified"].timestamp() * 1000)
    return StoredObject(found["path"], found["size"], modified_ms, found["e_tag"] or "")


def _errors() -> tuple[type[Exception], ...]:
    return (obstore().exceptions.BaseError, OSError, ValueError)


# --- bucket file ---
# One object of a bucket as a file that libraries read, such as pyarrow.
#
# Thread safety: a `BucketFile` can be shared and pickled. A stream belongs to one thread at a time.
# Invariants:
#     1. All reads see the object that was listed. An object that was replaced since is an error.
# Raises: BucketError: the object was removed or replaced, or the service does not answer.


@dataclass(frozen=True, slots=True)
class BucketFile:
    """An object in the state that it had when it was found."""

    url: BucketUrl
    object: StoredObject
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return str(self.url.below(self.object.path))

    def open(self) -> "BucketStream":
        """Return a stream at the first byte."""
        return BucketStream(Bucket(self.url, self.storage), self.object)


class BucketStream(io.RawIOBase):
    """Reads an object by range. Each read is one request, or several at once if it is large."""

    def __init__(self, bucket: Bucket, one: StoredObject) -> None:
        super().__init__()
        self._bucket = bucket
        self._object = one
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read, and return it."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._object.bytes}[whence]
        self._place = max(begin + offset, 0)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, up to the end of the object. Return the number of bytes."""
        view = memoryview(buffer).cast("B")
        end = min(self._place + len(view), self._object.bytes)
        if end <= self._place:
            return 0
        data = self._bucket.read(self._object, self._place, end)
        view[: len(data)] = data
        self._place = end
        return len(data)


def find_files(url: BucketUrl) -> list[BucketFile]:
    """Return the object at a URL, or all objects below it, by path."""
    parent, _, name = url.prefix.rpartition("/")
    if name:
        above = BucketUrl(url.scheme, url.host, parent)
        one = Bucket(above).head(name)
        if one is not None:
            return [BucketFile(above, one)]
    return [BucketFile(url, one) for one in Bucket(url).list()]
