/* Sealed timer units: what a flipped bit, a swapped block or a torn write made of one is seen. */
#ifndef TS_SEAL_H
#define TS_SEAL_H

#include "format/timer_unit.h"
#include "base/checksum.h"

static inline int64_t ts_seal_of(const uint8_t *at, int64_t pos)
{
    return TS_TIMER_SEAL | (int64_t)ts_crc32((uint32_t)pos, at, TS_TIMER_AT_SEAL);
}

/* Writes the unit of the position, sealed. */
static inline void ts_sealed_put(uint8_t *at, int64_t pos, const ts_timer_unit *unit)
{
    ts_timer_unit_put(at, unit);
    ts_put_i64(at + TS_TIMER_AT_SEAL, ts_seal_of(at, pos));
}

/* Whether the seal of the 52 bytes at the position holds; there may be none, as of a broker's. */
static inline int ts_seal_holds(const uint8_t *at, int64_t pos)
{
    int64_t seal = ts_get_i64(at + TS_TIMER_AT_SEAL);

    return seal == 0 || seal == ts_seal_of(at, pos);
}

/* The unit at the position: 0, or -1 where it is none. */
static inline int ts_sealed_get(const uint8_t *at, int64_t pos, ts_timer_unit *unit)
{
    return ts_seal_holds(at, pos) ? ts_timer_unit_get(at, unit) : -1;
}

#endif
