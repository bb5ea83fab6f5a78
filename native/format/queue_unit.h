/* Consume-queue unit: one message of one queue.
 *
 *  0            8      12          20
 *  | log offset | size | tags code |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 8     | i64  | bytes | log offset of the record                                   |
 * | 8      | 4     | i32  | bytes | size of the record                                         |
 * | 12     | 8     | i64  | -     | Java's hash of TAGS, sign-extended; 0 without tags; in the |
 * |        |       |      |       | level topic the due time in ms                             |
 *
 * Byte order: big-endian. Unit k of a queue is at byte 20 k of the queue's space.
 *
 * Valid if and only if: log offset >= 0 and size > 0. A zeroed unit has size 0: the queue ends
 * there. If older files of a queue were removed, a padding unit (0, TS_QUEUE_PAD_SIZE, 0) precedes
 * its first unit. A padding unit is valid and points to no message.
 *
 * Versions: one in every release.
 */
#ifndef TS_FORMAT_QUEUE_UNIT_H
#define TS_FORMAT_QUEUE_UNIT_H

#include "format/bytes.h"

#define TS_QUEUE_UNIT_BYTES 20
#define TS_QUEUE_AT_LOG_OFFSET 0
#define TS_QUEUE_AT_SIZE 8
#define TS_QUEUE_AT_TAGS_CODE 12
#define TS_QUEUE_PAD_SIZE INT32_MAX

_Static_assert(TS_QUEUE_AT_TAGS_CODE + 8 == TS_QUEUE_UNIT_BYTES, "size of a queue unit");

static inline void ts_queue_unit_put(uint8_t *at, int64_t log_offset, int32_t size,
                                     int64_t tags_code)
{
    ts_put_i64(at + TS_QUEUE_AT_LOG_OFFSET, log_offset);
    ts_put_i32(at + TS_QUEUE_AT_SIZE, size);
    ts_put_i64(at + TS_QUEUE_AT_TAGS_CODE, tags_code);
}

static inline void ts_queue_unit_get(const uint8_t *at, int64_t *log_offset, int32_t *size,
                                     int64_t *tags_code)
{
    *log_offset = ts_get_i64(at + TS_QUEUE_AT_LOG_OFFSET);
    *size = ts_get_i32(at + TS_QUEUE_AT_SIZE);
    *tags_code = ts_get_i64(at + TS_QUEUE_AT_TAGS_CODE);
}

static inline int ts_queue_unit_is_valid(const uint8_t *at)
{
    return ts_get_i64(at + TS_QUEUE_AT_LOG_OFFSET) >= 0 && ts_get_i32(at + TS_QUEUE_AT_SIZE) > 0;
}

#endif
