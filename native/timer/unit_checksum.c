/* Validity of consecutive timer units, independent of chains. */
#include "timer/unit_checksum.h"

#include "timerstore.h"

void ts_units_check(const uint8_t *units, int64_t count, int64_t pos, uint8_t *is_sound)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i * TS_TIMER_UNIT_BYTES;
        ts_timer_unit unit;

        is_sound[i] = ts_checked_unit_get(units + at, pos + at, &unit) == 0;
    }
}
