/* The checkpoint files of fixed size, as arrays of their fields in order. */
#include "format/store_checkpoint.h"
#include "format/timer_check.h"
#include "timerstore.h"

void ts_timer_check_pack(const int64_t *fields, uint8_t *out)
{
    for (int32_t i = 0; i < TS_TIMER_CHECK_BYTES / 8; i++)
        ts_put_i64(out + 8 * i, fields[i]);
}

int32_t ts_timer_check_unpack(const uint8_t *at, int64_t available, int64_t *fields)
{
    if (available < TS_TIMER_CHECK_BYTES_MIN)
        return TS_CORRUPT;
    for (int32_t i = 0; i < TS_TIMER_CHECK_BYTES / 8; i++)
        fields[i] = 8 * i + 8 <= available ? ts_get_i64(at + 8 * i) : 0;
    return TS_OK;
}

void ts_store_checkpoint_pack(const int64_t *fields, uint8_t *out)
{
    for (int32_t i = 0; i < TS_STORE_CHECKPOINT_BYTES / 8; i++)
        ts_put_i64(out + 8 * i, fields[i]);
}
