#include "log/view.h"

#include "base/checksum.h"
#include "format/properties.h"

enum { SECTOR_BYTES = 512 }; /* what a disk writes atomically */

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

/* Return whether a part of a text that fills one sector, as far as the text reaches, consists of
 * zeros. A power cut leaves this if it wrote the neighbouring sectors, but not this one. The record
 * may have lost its own CRC the same way. A valid text never has zero bytes. */
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

/* Return whether a text is UTF-8, as every writer's is. */
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

/* Return whether the last bytes of the properties are a damaged CRC pair: its name or a digit has
 * changed, so that it reads as another property. It counts as one if it has the name, which is
 * reserved, or if 16 of the 20 bytes are as in a CRC pair. Only a last property with a very similar
 * name could be mistaken for one. A value may end with any bytes, for example a message id that a
 * caller chose. So one of the two separators that no value contains must be in its place: the one
 * before the pair, or the one after the name.
 */
static int32_t is_broken_crc(const ts_record *record, const uint8_t *at20)
{
    static const uint8_t template[] = "__CRC32#\x01";
    int32_t same = at20[TS_PROPERTY_CRC_BYTES - 1] == 2, i;
    int32_t begins = record->properties_size == TS_PROPERTY_CRC_BYTES || at20[-1] == 2;

    if (begins && memcmp(at20, template, 9) == 0)
        return 1;
    if (!begins && at20[TS_PROP_CRC32_BYTES] != 1)
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
    /* Random bytes at the record's end replaced its CRC, too. Few random bytes are UTF-8. */
    if (!is_text(record->properties, record->properties_size))
        return TS_FAULT_PROPERTIES;
    return TS_FAULT_NONE;
}
