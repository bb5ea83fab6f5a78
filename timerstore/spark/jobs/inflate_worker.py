"""Run in executors: inflate message bodies that a client has compressed.

Bit 0 of the flags marks a compressed body.

Raises: MessageError for LZ4 and ZSTD. CorruptError if the compressed data is damaged.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from timerstore.types.messages import SYS_FLAG_COMPRESSED, inflate_body


def inflate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the column `body` inflated where `flags` says so, and without `flags`."""
    for batch in batches:
        flags = batch.column("flags").fill_null(0)
        body = batch.column("body")
        deflated = pc.not_equal(pc.bit_wise_and(flags, SYS_FLAG_COMPRESSED), 0)
        if pc.any(deflated).as_py():
            pairs = zip(body.to_pylist(), flags.to_pylist(), strict=True)
            bodies = [inflate_body(one, flag) if one is not None else None for one, flag in pairs]
            body = pa.array(bodies, body.type)
        names = [name for name in batch.schema.names if name != "flags"]
        columns = [body if name == "body" else batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names=names)
