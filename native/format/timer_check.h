/* Timer checkpoint, file config/timercheck.
 *
 *  0         8             16             24               32            40           48      56
 *  | read ms | flushed pos | queue offset | master's queue | state vers. | version ms | count |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 8     | i64  | ms    | next slot time to deliver                                  |
 * | 8      | 8     | i64  | bytes | timer-log position known to be flushed                     |
 * | 16     | 8     | i64  | units | next queue offset of the timer topic, at most the next one |
 * | 24     | 8     | i64  | units | the same, as the delivering broker last committed it       |
 * | 32     | 8     | i64  | -     | data version: state version                                |
 * | 40     | 8     | i64  | ms    | data version: time                                         |
 * | 48     | 8     | i64  | -     | data version: counter                                      |
 *
 * Byte order: big-endian. The file has 4096 bytes; zeros follow.
 *
 * Valid if and only if: 32 bytes are available; missing fields of the last three read as 0. There
 * is neither magic nor checksum, and a new file is all zeros. So the reader compares the numbers
 * with the files that they refer to.
 *
 * Versions: one in every release.
 */
#ifndef TS_FORMAT_TIMER_CHECK_H
#define TS_FORMAT_TIMER_CHECK_H

#include "format/bytes.h"

#define TS_TIMER_CHECK_BYTES 56
#define TS_TIMER_CHECK_BYTES_MIN 32
#define TS_TIMER_CHECK_FILE_BYTES 4096
#define TS_TIMER_CHECK_AT_READ_MS 0
#define TS_TIMER_CHECK_AT_FLUSHED_POS 8
#define TS_TIMER_CHECK_AT_QUEUE_OFFSET 16
#define TS_TIMER_CHECK_AT_MASTER_QUEUE_OFFSET 24
#define TS_TIMER_CHECK_AT_STATE_VERSION 32
#define TS_TIMER_CHECK_AT_VERSION_MS 40
#define TS_TIMER_CHECK_AT_COUNTER 48

_Static_assert(TS_TIMER_CHECK_AT_COUNTER + 8 == TS_TIMER_CHECK_BYTES, "size of timercheck");

typedef struct ts_timer_check {
    int64_t read_ms;
    int64_t flushed_pos;
    int64_t queue_offset;
    int64_t master_queue_offset;
    int64_t state_version;
    int64_t version_ms;
    int64_t counter;
} ts_timer_check;

static inline void ts_timer_check_put(uint8_t *at, const ts_timer_check *check)
{
    ts_put_i64(at + TS_TIMER_CHECK_AT_READ_MS, check->read_ms);
    ts_put_i64(at + TS_TIMER_CHECK_AT_FLUSHED_POS, check->flushed_pos);
    ts_put_i64(at + TS_TIMER_CHECK_AT_QUEUE_OFFSET, check->queue_offset);
    ts_put_i64(at + TS_TIMER_CHECK_AT_MASTER_QUEUE_OFFSET, check->master_queue_offset);
    ts_put_i64(at + TS_TIMER_CHECK_AT_STATE_VERSION, check->state_version);
    ts_put_i64(at + TS_TIMER_CHECK_AT_VERSION_MS, check->version_ms);
    ts_put_i64(at + TS_TIMER_CHECK_AT_COUNTER, check->counter);
}

/* Decode a timer checkpoint. Return 0, or -1 if fewer than 32 bytes are available. */
static inline int ts_timer_check_get(const uint8_t *at, int64_t available, ts_timer_check *check)
{
    if (available < TS_TIMER_CHECK_BYTES_MIN)
        return -1;
    check->read_ms = ts_get_i64(at + TS_TIMER_CHECK_AT_READ_MS);
    check->flushed_pos = ts_get_i64(at + TS_TIMER_CHECK_AT_FLUSHED_POS);
    check->queue_offset = ts_get_i64(at + TS_TIMER_CHECK_AT_QUEUE_OFFSET);
    check->master_queue_offset = ts_get_i64(at + TS_TIMER_CHECK_AT_MASTER_QUEUE_OFFSET);
    check->state_version = 0;
    check->version_ms = 0;
    check->counter = 0;
    if (available >= TS_TIMER_CHECK_AT_STATE_VERSION + 8)
        check->state_version = ts_get_i64(at + TS_TIMER_CHECK_AT_STATE_VERSION);
    if (available >= TS_TIMER_CHECK_AT_VERSION_MS + 8)
        check->version_ms = ts_get_i64(at + TS_TIMER_CHECK_AT_VERSION_MS);
    if (available >= TS_TIMER_CHECK_AT_COUNTER + 8)
        check->counter = ts_get_i64(at + TS_TIMER_CHECK_AT_COUNTER);
    return 0;
}

#endif
