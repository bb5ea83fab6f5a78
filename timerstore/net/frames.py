"""Split a stream of bytes into frames: a length of 4 bytes (big endian), then as many bytes.

Raises: ProtocolError for a length of 0 or above the limit, before any of the frame is stored.
See also: docs/protocol.md.
"""

from collections.abc import Iterator
from struct import Struct

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import ProtocolError

_length = Struct(">I")
LENGTH_BYTES = _length.size
FRAME_BYTES_MAX = 32 << 20
"""The default limit of one frame, without its length."""


def frame_length(payload: bytes) -> bytes:
    """Return the beginning of a frame with this payload."""
    return _length.pack(len(payload))


def frame(payload: bytes) -> bytes:
    """Return a frame with this payload."""
    return frame_length(payload) + payload


class FrameSplitter(NotCopyable):
    """Collects received bytes and returns complete frames. It holds less than one frame and what
    was received with it.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """The limit; a change applies from the next frame on."""
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no part of a frame is stored."""
        return not self._buffer

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Add received bytes. Yield the payload of each frame that is complete."""
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        try:
            while size - at >= LENGTH_BYTES:
                length = _checked_length(buffer, at, self.frame_bytes_max)
                begin = at + LENGTH_BYTES
                if begin + length > size:
                    break
                at = begin + length
                yield bytes(memoryview(buffer)[begin:at])
        finally:
            del buffer[:at]


def split_frames(chunks: list[bytes], frame_bytes_max: int) -> tuple[list[bytes], bytes] | None:
    """Return the payloads of the complete frames in received bytes, and the rest. Return None if no
    frame is complete. Nothing is changed, so that an interrupted call can be repeated.
    """
    data = chunks[0]
    if (
        len(chunks) == 1
        and LENGTH_BYTES < len(data) <= LENGTH_BYTES + frame_bytes_max
        and _length.unpack_from(data)[0] == len(data) - LENGTH_BYTES
    ):
        return [data[LENGTH_BYTES:]], b""  # the usual case
    size = sum(map(len, chunks))
    if size < LENGTH_BYTES:
        return None
    data = chunks[0] if len(chunks[0]) >= LENGTH_BYTES else b"".join(chunks)
    end = LENGTH_BYTES + _checked_length(data, 0, frame_bytes_max)
    if end > size:
        return None
    if len(data) < size:
        data = b"".join(chunks)
    payloads = [data[LENGTH_BYTES:end]]
    begin = end
    while size - begin >= LENGTH_BYTES:
        end = begin + LENGTH_BYTES + _checked_length(data, begin, frame_bytes_max)
        if end > size:
            break
        payloads.append(data[begin + LENGTH_BYTES : end])
        begin = end
    return payloads, data[begin:]


def _checked_length(data: bytes | bytearray, at: int, frame_bytes_max: int) -> int:
    length: int = _length.unpack_from(data, at)[0]
    if not 1 <= length <= frame_bytes_max:
        raise ProtocolError(
            "a frame has an invalid length", wanted=f"1 to {frame_bytes_max} bytes", got=length
        )
    return length
