/* Unit checksums: they detect flipped bits, swapped blocks and torn writes in timer units. */
#ifndef TS_UNIT_CHECKSUM_H
#define TS_UNIT_CHECKSUM_H

#include "base/checksum.h"
#include "format/timer_unit.h"

static inline int64_t ts_unit_checksum(const uint8_t *at, int64_t pos)
{
    return TS_TIMER_CHECKSUM_MARK | (int64_t)ts_crc32((uint32_t)pos, at, TS_TIMER_AT_CHECKSUM);
}

/* Write a unit with the checksum for its position. */
static inline void ts_checked_unit_put(uint8_t *at, int64_t pos, const ts_timer_unit *unit)
{
    ts_timer_unit_put(at, unit);
    ts_put_i64(at + TS_TIMER_AT_CHECKSUM, ts_unit_checksum(at, pos));
}

/* Return whether the checksum of the 52 bytes at the position matches, or is missing, as in a
 * broker's units. */
static inline int ts_unit_checksum_holds(const uint8_t *at, int64_t pos)
{
    int64_t checksum = ts_get_i64(at + TS_TIMER_AT_CHECKSUM);

    return checksum == 0 || checksum == ts_unit_checksum(at, pos);
}

/* Read the unit at the position. Return 0, or -1 if it is not valid. */
static inline int ts_checked_unit_get(const uint8_t *at, int64_t pos, ts_timer_unit *unit)
{
    return ts_unit_checksum_holds(at, pos) ? ts_timer_unit_get(at, unit) : -1;
}

#endif
