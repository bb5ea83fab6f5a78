/* Wheel slot: the ends of a chain of timer units.
 *
 *  0      8           16         24      28      32
 *  | time | first pos | last pos | count | magic |
 *
 * | offset | bytes | type | unit  | meaning                                                    |
 * |--------|-------|------|-------|------------------------------------------------------------|
 * | 0      | 8     | i64  | slots | the slot's time divided by the precision (not ms)          |
 * | 8      | 8     | i64  | bytes | timer-log position of the oldest unit                      |
 * | 16     | 8     | i64  | bytes | timer-log position of the newest unit: head of the chain   |
 * | 24     | 4     | i32  | units | waiting units, less the deletes; a broker approximates it  |
 * | 28     | 4     | i32  | -     | magic: unused, 0                                           |
 *
 * Byte order: big-endian. The slot of time t is at 32 (t / precision mod 1209600). The file
 * consists of the slots only. A broker rejects a file of another length; an open timerstore makes
 * the file 32 bytes longer to keep brokers out.
 *
 * Valid for slot number s if and only if: time = s, and s > 0. Zeros, or the time of another lap,
 * mean an empty slot.
 *
 * Versions: one in every release.
 */
#ifndef TS_FORMAT_WHEEL_SLOT_H
#define TS_FORMAT_WHEEL_SLOT_H

#include "format/bytes.h"

#define TS_SLOT_BYTES 32
#define TS_SLOT_AT_TIME 0
#define TS_SLOT_AT_FIRST_POS 8
#define TS_SLOT_AT_LAST_POS 16
#define TS_SLOT_AT_COUNT 24
#define TS_SLOT_AT_MAGIC 28
#define TS_WHEEL_SLOT_COUNT 1209600 /* twice seven days of seconds, whatever the precision */
#define TS_WHEEL_FILE_BYTES 38707200

_Static_assert(TS_SLOT_AT_MAGIC + 4 == TS_SLOT_BYTES, "size of a wheel slot");
_Static_assert(TS_WHEEL_SLOT_COUNT * TS_SLOT_BYTES == TS_WHEEL_FILE_BYTES, "size of a wheel");

typedef struct ts_slot {
    int64_t time; /* in slots since the epoch */
    int64_t first_pos;
    int64_t last_pos;
    int32_t count;
    int32_t magic;
} ts_slot;

static inline void ts_slot_put(uint8_t *at, const ts_slot *slot)
{
    ts_put_i64(at + TS_SLOT_AT_TIME, slot->time);
    ts_put_i64(at + TS_SLOT_AT_FIRST_POS, slot->first_pos);
    ts_put_i64(at + TS_SLOT_AT_LAST_POS, slot->last_pos);
    ts_put_i32(at + TS_SLOT_AT_COUNT, slot->count);
    ts_put_i32(at + TS_SLOT_AT_MAGIC, slot->magic);
}

static inline void ts_slot_get(const uint8_t *at, ts_slot *slot)
{
    slot->time = ts_get_i64(at + TS_SLOT_AT_TIME);
    slot->first_pos = ts_get_i64(at + TS_SLOT_AT_FIRST_POS);
    slot->last_pos = ts_get_i64(at + TS_SLOT_AT_LAST_POS);
    slot->count = ts_get_i32(at + TS_SLOT_AT_COUNT);
    slot->magic = ts_get_i32(at + TS_SLOT_AT_MAGIC);
}

#endif
