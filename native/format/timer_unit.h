/* Timer-log unit, and the blank that ends a timer-log segment.
 *
 *  0      4          12      16         24      28           36     40           44         52
 *  | size | prev pos | magic | write ms | delay | log offset | size | topic hash | checksum |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 4     | i32  | bytes | size of the unit: 52                                       |
 * | 4      | 8     | i64  | bytes | timer-log position of the slot's previous unit; -1: none   |
 * | 12     | 4     | i32  | bits  | TS_TIMER_MAGIC_DEFAULT, _ROLL, _DELETE, _AGAIN             |
 * | 16     | 8     | i64  | ms    | time of linking, rounded down to the precision             |
 * | 24     | 4     | i32  | ms    | slot time minus write time                                 |
 * | 28     | 8     | i64  | bytes | log offset of the message in the timer topic               |
 * | 36     | 4     | i32  | bytes | size of that message                                       |
 * | 40     | 4     | i32  | -     | Java's hash of the real topic; 0 without one               |
 * | 44     | 8     | i64  | -     | unit checksum: TS_TIMER_CHECKSUM_MARK, and the CRC-32 of   |
 * |        |       |      |       | bytes 0 to 43, started with the low 32 bits of the unit's  |
 * |        |       |      |       | position; 0: no checksum                                   |
 *
 * Byte order: big-endian. Slot time = write ms + delay. For a unit that rolls it is the time it
 * rolls.
 *
 * Valid if and only if: size = 52; magic is 0 to 15; the previous position is at least -1, the log
 * offset at least 0; and the checksum matches, or is 0. Zeros are invalid because of their size. A
 * previous position that retention removed is valid, and ends the chain. To a broker the checksum
 * is a reserved field: it writes 0, and does not read it.
 *
 * Blank, in the last 16 bytes or more of a segment (a unit is appended only if 52 + 16 are left):
 *
 * | 0      | 4     | i32  | bytes | rest of the segment, this field included                   |
 * | 4      | 8     | i64  | -     | 0                                                          |
 * | 12     | 4     | i32  | -     | 0xCBD43194, the same number as the commit log's blank      |
 *
 * Versions: one in every release; with a checksum since docs/decisions/0003-timing-wheel.md.
 */
#ifndef TS_FORMAT_TIMER_UNIT_H
#define TS_FORMAT_TIMER_UNIT_H

#include "format/bytes.h"

#define TS_TIMER_UNIT_BYTES 52
#define TS_TIMER_BLANK_BYTES 16
#define TS_TIMER_BLANK_MAGIC ((int32_t)(-875286124)) /* 0xCBD43194 */

#define TS_TIMER_AT_SIZE 0
#define TS_TIMER_AT_PREV_POS 4
#define TS_TIMER_AT_MAGIC 12
#define TS_TIMER_AT_WRITE_MS 16
#define TS_TIMER_AT_DELAY_MS 24
#define TS_TIMER_AT_LOG_OFFSET 28
#define TS_TIMER_AT_MESSAGE_SIZE 36
#define TS_TIMER_AT_TOPIC_HASH 40
#define TS_TIMER_AT_CHECKSUM 44

#define TS_TIMER_MAGIC_DEFAULT 1 /* every writer sets it */
#define TS_TIMER_MAGIC_ROLL 2
#define TS_TIMER_MAGIC_DELETE 4
#define TS_TIMER_MAGIC_AGAIN 8 /* timerstore's: the message had a unit before; a broker ignores
                                * the bit */
#define TS_TIMER_MAGIC_MAX 15
#define TS_TIMER_PREV_NONE (-1)
#define TS_TIMER_CHECKSUM_MARK ((int64_t)0x54535531 << 32) /* "TSU1" */

_Static_assert(TS_TIMER_AT_CHECKSUM + 8 == TS_TIMER_UNIT_BYTES, "size of a timer unit");
_Static_assert(TS_TIMER_BLANK_MAGIC == (int32_t)0xCBD43194u, "magic of a timer-log blank");

typedef struct ts_timer_unit {
    int64_t prev_pos;
    int32_t magic;
    int64_t write_ms;
    int32_t delay_ms;
    int64_t log_offset;
    int32_t size; /* of the message, not of the unit */
    int32_t topic_hash;
    int64_t checksum;
} ts_timer_unit;

static inline void ts_timer_unit_put(uint8_t *at, const ts_timer_unit *unit)
{
    ts_put_i32(at + TS_TIMER_AT_SIZE, TS_TIMER_UNIT_BYTES);
    ts_put_i64(at + TS_TIMER_AT_PREV_POS, unit->prev_pos);
    ts_put_i32(at + TS_TIMER_AT_MAGIC, unit->magic);
    ts_put_i64(at + TS_TIMER_AT_WRITE_MS, unit->write_ms);
    ts_put_i32(at + TS_TIMER_AT_DELAY_MS, unit->delay_ms);
    ts_put_i64(at + TS_TIMER_AT_LOG_OFFSET, unit->log_offset);
    ts_put_i32(at + TS_TIMER_AT_MESSAGE_SIZE, unit->size);
    ts_put_i32(at + TS_TIMER_AT_TOPIC_HASH, unit->topic_hash);
    ts_put_i64(at + TS_TIMER_AT_CHECKSUM, unit->checksum);
}

/* Decode the unit at `at`, 52 bytes, without checking its checksum (timer/unit_checksum.h). Return
 * 0, or -1 if it is not a unit. */
static inline int ts_timer_unit_get(const uint8_t *at, ts_timer_unit *unit)
{
    unit->magic = ts_get_i32(at + TS_TIMER_AT_MAGIC);
    if (ts_get_i32(at + TS_TIMER_AT_SIZE) != TS_TIMER_UNIT_BYTES || unit->magic < 0 ||
        unit->magic > TS_TIMER_MAGIC_MAX)
        return -1;
    unit->prev_pos = ts_get_i64(at + TS_TIMER_AT_PREV_POS);
    unit->write_ms = ts_get_i64(at + TS_TIMER_AT_WRITE_MS);
    unit->delay_ms = ts_get_i32(at + TS_TIMER_AT_DELAY_MS);
    unit->log_offset = ts_get_i64(at + TS_TIMER_AT_LOG_OFFSET);
    unit->size = ts_get_i32(at + TS_TIMER_AT_MESSAGE_SIZE);
    unit->topic_hash = ts_get_i32(at + TS_TIMER_AT_TOPIC_HASH);
    unit->checksum = ts_get_i64(at + TS_TIMER_AT_CHECKSUM);
    if (unit->prev_pos < TS_TIMER_PREV_NONE || unit->log_offset < 0)
        return -1;
    return 0;
}

/* Write a blank over the segment's `remaining` bytes, at least 16. Writes the first 16. */
static inline void ts_timer_blank_put(uint8_t *at, int32_t remaining)
{
    ts_put_i32(at, remaining);
    ts_put_i64(at + 4, 0);
    ts_put_i32(at + 12, TS_TIMER_BLANK_MAGIC);
}

/* Return whether a blank is at `at`, and how many bytes it spans: 16 or more. */
static inline int ts_timer_blank_is(const uint8_t *at, int64_t available, int32_t *remaining)
{
    if (available < TS_TIMER_BLANK_BYTES || ts_get_i32(at + 12) != TS_TIMER_BLANK_MAGIC)
        return 0;
    *remaining = ts_get_i32(at);
    return *remaining >= TS_TIMER_BLANK_BYTES;
}

#endif
