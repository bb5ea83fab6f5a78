"""Check message bodies: one, or many as a list or as one buffer with offsets.

Raises: MessageError, with every problem of one argument.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import PROBLEMS_MAX, Int64Array, refuse_values
from timerstore._engine.base.native import ffi, join, lib
from timerstore.errors import MessageError, typed

Body = bytes | memoryview


def check_body(body: object, body_bytes_max: int) -> Body:
    """Return the body as bytes, or as a view of single bytes of the caller's buffer."""
    if type(body) is bytes and len(body) <= body_bytes_max:
        return body
    view: Body = body if type(body) is bytes else view_of(body, "body")
    if len(view) > body_bytes_max:
        raise MessageError(f"body: wanted at most {body_bytes_max} bytes, got {len(view)}")
    return view


def view_of(data: object, what: str) -> memoryview:
    """Return a view of single bytes. MessageError unless `data` is a contiguous buffer."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # TypeError if it is not a buffer
    except TypeError as error:
        hint = "; encode it first" if isinstance(data, str) else ""
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}{hint}") from error
    except (ValueError, BufferError) as error:  # released, or of a type without bytes
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}: {error}") from error
    if not view.c_contiguous:
        raise MessageError(f"{what}: wanted contiguous bytes, got a view with steps")
    if not view.nbytes:
        return memoryview(b"")  # a view with a 0 in its shape cannot be cast
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


class Spans(NamedTuple):
    """Bodies of a batch: body k is `data[offsets[k]:offsets[k + 1]]`."""

    data: Body
    offsets: Int64Array
    largest: int  # bytes of the largest body


_COUNTED_IN_BYTES = {bytes, bytearray}  # the length of a view counts elements, not bytes


def gather_bodies(bodies: object, body_bytes_max: int) -> Spans:
    """Return the bodies of a batch as one buffer and `count + 1` offsets into it.

    `bodies` is a sequence of bytes-likes, or a pair (buffer, array or list of offsets).
    """
    if type(bodies) is list:
        offsets = np.empty(len(bodies) + 1, np.int64)
        found = join(bodies, offsets)
        if found is not None:  # every body is `bytes`, the usual case
            return _checked_sizes(Spans(found[0], offsets, found[1]), body_bytes_max)
    if (offsets_of := _pair_offsets(bodies)) is not None:
        return _checked_spans(view_of(bodies[0], "bodies"), offsets_of, body_bytes_max)  # type: ignore[index]  # a pair
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Sequence):
        raise MessageError(
            "bodies: wanted a sequence of bytes-likes, or (buffer, array of offsets), "
            f"got {typed(bodies)}"
        )
    offsets = np.zeros(len(bodies) + 1, np.int64)
    try:
        joined = b"".join(bodies)
        if not {*map(type, bodies)} <= _COUNTED_IN_BYTES:
            bodies = [view_of(body, "bodies") for body in bodies]
        np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), out=offsets[1:])
    except (TypeError, ValueError, BufferError) as error:
        raise MessageError(_wrong_bodies(bodies)) from error
    return _checked_spans(joined, offsets, body_bytes_max)


def count_bodies(bodies: object) -> int:
    """Return the number of bodies; 0 if this is not a batch, which `gather_bodies` rejects."""
    if (offsets := _pair_offsets(bodies)) is not None:
        return max(0, offsets.size - 1)
    return len(bodies) if isinstance(bodies, Sequence) else 0


def _pair_offsets(bodies: object) -> npt.NDArray[np.generic] | None:
    """Return the offsets of a pair (buffer, offsets); None for another value."""
    if not isinstance(bodies, tuple) or len(bodies) != 2:
        return None
    if isinstance(bodies[1], np.ndarray):
        return bodies[1]
    if not isinstance(bodies[1], list):
        return None
    try:
        return np.asarray(bodies[1])
    except ValueError:  # lists of several lengths
        return None


def _wrong_bodies(bodies: Sequence[object]) -> list[str]:
    problems: list[str] = []
    for k, body in enumerate(bodies):
        try:
            view_of(body, f"bodies[{k}]")
        except MessageError as error:
            problems.extend(error.problems)
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more of {len(bodies)}"]
    return problems or ["bodies: wanted bytes-likes"]


def _checked_spans(data: Body, offsets: npt.NDArray[np.generic], body_bytes_max: int) -> Spans:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 1:
        raise MessageError(
            f"bodies: wanted one row of whole offsets, count + 1 of them, got {offsets.dtype} "
            f"of shape {offsets.shape}"
        )
    spans = np.array(offsets, np.int64)  # a copy: the caller cannot change it after the check
    native_offsets = ffi.from_buffer("int64_t[]", spans)
    largest = int(lib.ts_spans_largest(native_offsets, len(spans) - 1, len(data)))
    if largest < 0:
        raise MessageError(
            f"bodies: wanted offsets that rise from 0 or more to at most {len(data)}, "
            f"got {spans[0]} to {spans[-1]}"
        )
    return _checked_sizes(Spans(data, spans, largest), body_bytes_max)


def _checked_sizes(spans: Spans, body_bytes_max: int) -> Spans:
    if spans.largest > body_bytes_max:
        sizes = np.diff(spans.offsets)
        refuse_values(
            sizes > body_bytes_max, f"bodies: wanted at most {body_bytes_max} bytes", sizes
        )
    return spans
