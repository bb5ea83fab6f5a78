/* Store checkpoint, file checkpoint: up to which time log, queues and index are known to be
 * flushed.
 *
 *  0        8           16         24                32               40
 *  | log ms | queues ms | index ms | master flushed  | confirm offset |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 8     | i64  | ms    | store time of the newest message flushed in the commit log |
 * | 8      | 8     | i64  | ms    | store time of the newest message put in a consume queue    |
 * | 16     | 8     | i64  | ms    | the same for the index                                     |
 * | 24     | 8     | i64  | bytes | log offset that the master flushed                         |
 * | 32     | 8     | i64  | bytes | log offset that all replicas confirmed                     |
 *
 * Byte order: big-endian. The file has 4096 bytes; zeros follow.
 *
 * Valid if and only if: 32 bytes are available; a missing last field reads as 0. There is neither
 * magic nor checksum. Zeros mean that nothing is known.
 *
 * Versions: the confirm offset since 5.1.3 of the broker, zeros before.
 */
#ifndef TS_FORMAT_STORE_CHECKPOINT_H
#define TS_FORMAT_STORE_CHECKPOINT_H

#include "format/bytes.h"

#define TS_STORE_CHECKPOINT_BYTES 40
#define TS_STORE_CHECKPOINT_BYTES_MIN 32
#define TS_STORE_CHECKPOINT_FILE_BYTES 4096
#define TS_STORE_CHECKPOINT_AT_LOG_MS 0
#define TS_STORE_CHECKPOINT_AT_QUEUES_MS 8
#define TS_STORE_CHECKPOINT_AT_INDEX_MS 16
#define TS_STORE_CHECKPOINT_AT_MASTER_FLUSHED 24
#define TS_STORE_CHECKPOINT_AT_CONFIRM_OFFSET 32

_Static_assert(TS_STORE_CHECKPOINT_AT_CONFIRM_OFFSET + 8 == TS_STORE_CHECKPOINT_BYTES,
               "size of the store checkpoint");

typedef struct ts_store_checkpoint {
    int64_t log_ms;
    int64_t queues_ms;
    int64_t index_ms;
    int64_t master_flushed_offset;
    int64_t confirm_offset;
} ts_store_checkpoint;

static inline void ts_store_checkpoint_put(uint8_t *at, const ts_store_checkpoint *checkpoint)
{
    ts_put_i64(at + TS_STORE_CHECKPOINT_AT_LOG_MS, checkpoint->log_ms);
    ts_put_i64(at + TS_STORE_CHECKPOINT_AT_QUEUES_MS, checkpoint->queues_ms);
    ts_put_i64(at + TS_STORE_CHECKPOINT_AT_INDEX_MS, checkpoint->index_ms);
    ts_put_i64(at + TS_STORE_CHECKPOINT_AT_MASTER_FLUSHED, checkpoint->master_flushed_offset);
    ts_put_i64(at + TS_STORE_CHECKPOINT_AT_CONFIRM_OFFSET, checkpoint->confirm_offset);
}

/* Decode a store checkpoint. Return 0, or -1 if fewer than 32 bytes are available. */
static inline int ts_store_checkpoint_get(const uint8_t *at, int64_t available,
                                          ts_store_checkpoint *checkpoint)
{
    if (available < TS_STORE_CHECKPOINT_BYTES_MIN)
        return -1;
    checkpoint->log_ms = ts_get_i64(at + TS_STORE_CHECKPOINT_AT_LOG_MS);
    checkpoint->queues_ms = ts_get_i64(at + TS_STORE_CHECKPOINT_AT_QUEUES_MS);
    checkpoint->index_ms = ts_get_i64(at + TS_STORE_CHECKPOINT_AT_INDEX_MS);
    checkpoint->master_flushed_offset = ts_get_i64(at + TS_STORE_CHECKPOINT_AT_MASTER_FLUSHED);
    checkpoint->confirm_offset =
        available < TS_STORE_CHECKPOINT_BYTES
            ? 0
            : ts_get_i64(at + TS_STORE_CHECKPOINT_AT_CONFIRM_OFFSET);
    return 0;
}

#endif
