/* A record of the timer topic as a request to link it. */
#ifndef TS_REQUEST_H
#define TS_REQUEST_H

#include "format/text.h"
#include "log/parse.h"

static inline void ts_request_of(const ts_record *record, const ts_states *states,
                                 uint32_t store_id, int64_t precision_ms, ts_tail *tail,
                                 ts_request *out)
{
    ts_marks marks;

    ts_marks_get_timer(record->properties, record->properties_size, tail, &marks);
    out->id = ts_marks_id(&marks, states, store_id, record->queue_offset);
    out->log_offset = record->log_offset;
    out->due_ms = ts_marks_due(&marks, precision_ms);
    out->out_ms = marks.out_ms;
    out->queue_offset = record->queue_offset;
    out->size = record->size;
    out->topic_hash = marks.real_topic.at == NULL
                          ? 0 : ts_java_hash(marks.real_topic.at, marks.real_topic.size);
    out->roll_times = marks.roll_times;
    out->flags = 0;
    if (marks.delete_key.at != NULL)
        out->flags |= TS_FLAG_DELETE;
    if (!ts_marks_usable(&marks))
        out->flags |= TS_FLAG_UNUSABLE;
}

#endif
