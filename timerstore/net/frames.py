"""Split a stream of bytes into frames: a length of 4 bytes (big endian), then as many bytes.

Raises: ProtocolError for a length of 0 or above the limit, before any of the frame is stored.
See also: docs/protocol.md.
"""

from collections.abc import Iterator
from struct import Struct

from timerstore._engine.base.owner import Owner
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


class FrameSplitter(Owner):
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
                (length,) = _length.unpack_from(buffer, at)
                if not 1 <= length <= self.frame_bytes_max:
                    raise ProtocolError(
                        "a frame has an invalid length",
                        wanted=f"1 to {self.frame_bytes_max} bytes",
                        got=length,
                    )
                begin = at + LENGTH_BYTES
                if begin + length > size:
                    break
                at = begin + length
                yield bytes(memoryview(buffer)[begin:at])
        finally:
            del buffer[:at]
