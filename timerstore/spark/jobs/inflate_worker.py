"""Bodies as their producers sent them: a client deflates large ones, and says so in bit 0 of the
flags.

Fails:    MessageError on LZ4 and ZSTD, CorruptError on a stream that is broken.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from timerstore.messages import SYS_FLAG_COMPRESSED, inflate_body


def inflate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Inflate column `body` where `flags` says so; drop `flags`."""
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
