#include "log/view.h"

#include "format/properties.h"
#include "base/checksum.h"

enum { SECTOR_BYTES = 512 }; /* what a disk writes whole or not at all */

int32_t ts_view_record(ts_view *view, int64_t offset, ts_record *record)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, offset, &available);
    int fault;

    if (at == NULL && view->need >= 0)
        return TS_NEED_SEGMENT;
    if (at == NULL)
        return ts_view_fault(view, offset,
                             offset < view->begin ? TS_FAULT_GONE : TS_FAULT_END);
    fault = ts_record_get(at, available, record);
    if (fault == TS_RECORD_ENDS)
        return ts_view_fault(view, offset, TS_FAULT_END);
    if (fault == TS_RECORD_SHORT)
        return ts_view_fault(view, offset, TS_FAULT_SHORT);
    if (fault == TS_RECORD_MAGIC)
        return ts_view_fault(view, offset, TS_FAULT_MAGIC);
    if (fault != 0)
        return ts_view_fault(view, offset, TS_FAULT_LENGTHS);
    if (record->log_offset != offset)
        return ts_view_fault(view, offset, TS_FAULT_POSITION);
    return TS_OK;
}

/* Whether a part of a text that fills one sector, as far as the text reaches, is nothing but zeros:
 * what a power cut leaves where this sector was not written and its neighbours were. A record that
 * lost its end so lost its own CRC, too. A text's bytes are never zero otherwise. */
static int32_t is_torn(const ts_record *record, const uint8_t *text, int32_t size)
{
    int64_t at = record->log_offset + (text - record->base), end = at + size;

    while (at < end) {
        int64_t sector_end = at / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES;

        if (sector_end > end)
            sector_end = end;
        while (at < sector_end && *text == 0) {
            at++;
            text++;
        }
        if (at == sector_end)
            return 1;
        text += sector_end - at;
        at = sector_end;
    }
    return 0;
}

/* Whether a text is UTF-8, as every writer's is. */
static int32_t is_text(const uint8_t *text, int32_t size)
{
    static const uint8_t unknown[3] = {0xEF, 0xBF, 0xBD};
    int32_t i = 0, from;

    while ((from = i) < size) {
        if (size - i >= 8 && (ts_get_u64(text + i) & 0x8080808080808080u) == 0)
            i += 8;
        else if (ts_utf8_next(text, size, &i) == 0xFFFD &&
                 (i - from != 3 || memcmp(text + from, unknown, 3) != 0))
            return 0;
    }
    return 1;
}

/* Whether the last bytes of the properties are a CRC that lost its form: its name or a digit has
 * changed, so that it reads as any other property. 16 of 20 bytes as they are in each are no chance;
 * only a property of another name of eight such bytes, last in its text, could be taken for one. A
 * value may end as it likes, as a message id that a caller gives: so one of the two ends that no value
 * has must be where it was, that of the pair before or that of the name. */
static int32_t is_broken_crc(const ts_record *record, const uint8_t *at20)
{
    static const uint8_t template[] = "__CRC32#\x01";
    int32_t same = at20[TS_PROPERTY_CRC_BYTES - 1] == 2, i;

    if (record->properties_size > TS_PROPERTY_CRC_BYTES && at20[-1] != 2 &&
        at20[TS_PROP_CRC32_BYTES] != 1)
        return 0;
    for (i = 0; i < 9; i++)
        same += at20[i] == template[i];
    for (; i < TS_PROPERTY_CRC_BYTES - 1; i++)
        same += at20[i] >= '0' && at20[i] <= '9';
    return same >= 16;
}

int32_t ts_record_check(const ts_record *record)
{
    const uint8_t *last = record->base + record->size - TS_PROPERTY_CRC_BYTES;
    uint32_t wanted;

    if (record->properties_size >= TS_PROPERTY_CRC_BYTES) {
        if (ts_property_crc_get(last, &wanted)) {
            uint32_t got = ts_crc32(0, record->base, record->size - TS_PROPERTY_CRC_BYTES);
            return (got & 0x7FFFFFFFu) == wanted ? TS_FAULT_NONE : TS_FAULT_PROPERTY_CRC;
        }
        if (is_broken_crc(record, last))
            return TS_FAULT_PROPERTY_CRC;
    }
    if (record->body_size > 0) {
        uint32_t got = ts_crc32(0, record->body, record->body_size);
        if ((int32_t)(got & 0x7FFFFFFFu) != record->body_crc)
            return TS_FAULT_BODY_CRC;
    }
    if (is_torn(record, record->topic, record->topic_size) ||
        is_torn(record, record->properties, record->properties_size))
        return TS_FAULT_PROPERTIES;
    /* Noise that took the record's end took its CRC, too; few noises are text. */
    if (!is_text(record->properties, record->properties_size))
        return TS_FAULT_PROPERTIES;
    return TS_FAULT_NONE;
}
