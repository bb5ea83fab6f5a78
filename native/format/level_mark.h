/* Level mark as property text: the value of TS_LEVEL, a property of timerstore's own. The delivered
 * copy of a message that waited for a fixed level has it.
 *
 *  0          4        6              12             18 bytes     as text: 24 characters, 6 bits each
 *  | store id | queue  | queue offset | due          |   ----->   AAAAAQABAAAAAAAHAYvP5WgA
 *
 * | offset | bytes | type | unit | meaning                                                      |
 * |--------|-------|------|------|--------------------------------------------------------------|
 * | 0      | 4     | u32  | -    | the store that delivered it                                  |
 * | 4      | 2     | u16  | -    | queue of the level topic in which it waited: level - 1       |
 * | 6      | 6     | u48  | unit | queue offset at which it waited                              |
 * | 12     | 6     | u48  | ms   | due time                                                     |
 *
 * Byte order: big-endian; then base64 with - and _ (URL-safe), without padding, as 18 is a
 * multiple of 3.
 *
 * Valid if and only if: all 24 characters are of that alphabet.
 *
 * Versions: timerstore 0.1.
 */
#ifndef TS_FORMAT_LEVEL_MARK_H
#define TS_FORMAT_LEVEL_MARK_H

#include "format/timer_id.h"

#define TS_LEVEL_MARK_BYTES 18
#define TS_LEVEL_MARK_TEXT_BYTES 24
#define TS_LEVEL_OFFSET_BITS 48 /* of a place: queue << 48 | queue offset */
#define TS_LEVEL_QUEUE_MAX 32767 /* keeps a place positive */

_Static_assert(TS_LEVEL_MARK_BYTES / 3 * 4 == TS_LEVEL_MARK_TEXT_BYTES, "base64 without padding");

/* Write a level mark. place: queue << 48 | queue offset; due_ms is below 2^48. */
static inline void ts_level_mark_put(uint8_t *at24, uint32_t store_id, int64_t place,
                                     int64_t due_ms)
{
    /* The first 12 bytes have the form of a timer id, with the place as id. 6 bytes follow. */
    ts_timer_id_put(at24, store_id, (uint64_t)place);
    ts_base64_48_put(at24 + 16, (uint64_t)due_ms & 0xFFFFFFFFFFFFu);
}

/* Read a level mark. Return 0, or -1 if the 24 characters are not a level mark. */
static inline int ts_level_mark_get(const uint8_t *at24, uint32_t *store_id, int64_t *place,
                                    int64_t *due_ms)
{
    uint64_t id = 0, due = 0;

    if (ts_timer_id_get(at24, store_id, &id) != 0 || ts_base64_48_get(at24 + 16, &due) != 0 ||
        id > (uint64_t)INT64_MAX)
        return -1;
    *place = (int64_t)id;
    *due_ms = (int64_t)due;
    return 0;
}

#endif
