#include "view.h"

#include "../format/properties.h"
#include "checksum.h"

int32_t ts_view_record(ts_view *view, int64_t offset, ts_record *record)
{
    int64_t available = 0;
    const uint8_t *at = ts_view_at(view, offset, &available);
    int fault;

    if (at == NULL)
        return view->need >= 0 ? TS_NEED_SEGMENT : ts_view_fault(view, offset, TS_FAULT_END);
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

int32_t ts_record_check(const ts_record *record)
{
    const uint8_t *last = record->base + record->size - TS_PROPERTY_CRC_BYTES;
    uint32_t wanted;

    if (record->properties_size >= TS_PROPERTY_CRC_BYTES && ts_property_crc_get(last, &wanted)) {
        uint32_t got = ts_crc32(0, record->base, record->size - TS_PROPERTY_CRC_BYTES);
        return (got & 0x7FFFFFFFu) == wanted ? TS_FAULT_NONE : TS_FAULT_PROPERTY_CRC;
    }
    if (record->body_size > 0) {
        uint32_t got = ts_crc32(0, record->body, record->body_size);
        if ((int32_t)(got & 0x7FFFFFFFu) != record->body_crc)
            return TS_FAULT_BODY_CRC;
    }
    return TS_FAULT_NONE;
}
