/* The part of a staging half that a recovery accepts.
 *
 * The sectors of a half are not those of the log. After a power cut a record can lack its end
 * without a whole sector of zeros, or have bytes of an earlier fill there. ts_record_check alone
 * would accept such a record if it lost its CRC pair, too.
 */
#include "base/checksum.h"
#include "format/properties.h"
#include "format/record.h"
#include "format/staging_mark.h"
#include "log/view.h"

static int32_t has_right_pair(const ts_record *record)
{
    const uint8_t *last = record->base + record->size - TS_PROPERTY_CRC_BYTES;

    return record->properties_size >= TS_PROPERTY_CRC_BYTES &&
           ts_property_crc_get(last, &(uint32_t){0}) && ts_record_check(record) == TS_FAULT_NONE;
}

/* Compare without overflow: after a power cut both numbers can have any value. */
static int32_t is_at(int64_t position, int64_t base, int64_t at)
{
    return (uint64_t)position - (uint64_t)base == (uint64_t)at;
}

/* Return the size of the leading records that end with a right CRC pair, and of the blank after
 * the last record of a segment. */
static int64_t paired_bytes(const uint8_t *half, int64_t filled, int64_t base)
{
    int64_t at = 0, position;
    ts_record record;

    while (at < filled && ts_record_get(half + at, filled - at, &record) == 0 &&
           is_at(record.log_offset, base, at) && has_right_pair(&record))
        at += record.size;
    if (filled - at == TS_BLANK_BYTES &&
        ts_blank_position_get(half + at, TS_BLANK_BYTES, &position) && is_at(position, base, at))
        return filled;
    return at;
}

int64_t ts_staged_bytes(const uint8_t *half, int64_t half_bytes, int64_t base, uint64_t mark)
{
    int64_t filled = ts_mark_filled(mark);

    if (filled > half_bytes)
        return 0;
    if (ts_mark_has_crc(mark))
        return ts_crc32(0, half, filled) == ts_mark_crc(mark) ? filled : 0;
    return paired_bytes(half, filled, base);
}
