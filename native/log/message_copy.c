#include "log/message_copy.h"

int32_t ts_copy_encode(uint8_t *out, const ts_record *source, const ts_route *route,
                       int32_t property_crc, ts_copy_properties *properties, void *job)
{
    ts_record head = *source;
    int32_t crc_bytes = property_crc ? TS_PROPERTY_CRC_BYTES : 0;
    uint8_t *text, *topic_end;

    head.queue_id = route->queue_id;
    head.topic = route->topic;
    head.topic_size = route->topic_size;
    head.magic = ts_record_magic(route->topic_size);
    head.prepared_offset = 0;
    head.properties_size = 0;
    text = out + ts_record_bytes(&head);
    head.properties_size = properties(text, source, 0, job);
    if (head.properties_size + crc_bytes > TS_PROPERTIES_BYTES_MAX) {
        crc_bytes = 0;
        head.properties_size = properties(text, source, 1, job);
        if (head.properties_size > TS_PROPERTIES_BYTES_MAX)
            return 0;
    }
    head.properties_size += crc_bytes;
    head.size = ts_record_bytes(&head);
    topic_end = ts_copy(ts_head_put(out, &head), source->body, source->body_size);
    ts_topic_put(topic_end, &head);
    if (crc_bytes)
        ts_property_crc_put(out + head.size - TS_PROPERTY_CRC_BYTES, 0); /* set when the record is
                                                                          * placed */
    return head.size;
}
