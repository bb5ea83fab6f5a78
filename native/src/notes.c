/* From notes to queue units, keys and requests: what ts_dispatch and ts_timer_requests would make of
 * the records themselves. */
#include "../format/queue_unit.h"
#include "notes.h"
#include "put.h"

/* A 5.4 broker's index has tags, too; what hash they have there is not noted. */
static int32_t needs_record(const ts_note *note, const ts_keys *keys)
{
    return keys != NULL && keys->has_tags && note->tags != 0;
}

static int32_t take_key(ts_keys *keys, const ts_note *note)
{
    if (keys == NULL || note->log_offset < keys->begin)
        return TS_OK;
    if (keys->count == keys->capacity)
        return TS_NEED_ROOM;
    keys->at[keys->count++] = (ts_key){
        .log_offset = note->log_offset, .store_ms = note->store_ms, .hash = note->key_hash};
    return TS_OK;
}

static void take_request(ts_request *out, const ts_note *note, int64_t precision_ms)
{
    *out = (ts_request){
        .id = note->queue_offset,
        .log_offset = note->log_offset,
        .due_ms = note->due_ms,
        .out_ms = ts_out_ms_of(note->due_ms, precision_ms),
        .queue_offset = note->queue_offset,
        .size = note->size,
        .topic_hash = note->real->topic_hash,
    };
}

int32_t ts_notes_take(ts_notes *notes, int64_t from, int64_t end, int64_t *next, int64_t *first,
                      int32_t capacity, int64_t precision_ms, uint8_t *units,
                      int32_t *route_indexes, int64_t *queue_offsets, ts_keys *keys,
                      ts_request *requests, int32_t *request_count)
{
    int64_t head = notes->head, tail = __atomic_load_n(&notes->tail, __ATOMIC_ACQUIRE);
    int64_t offset = from;
    int32_t count = 0;

    *request_count = 0;
    *first = INT64_MAX;
    for (; head < tail; head++) {
        const ts_note *note = &notes->at[head & (notes->capacity - 1)];

        if (note->log_offset < offset || needs_record(note, keys))
            continue; /* read from the log */
        *first = note->log_offset;
        if (note->log_offset > offset || note->log_offset + note->size > end ||
            count == capacity || take_key(keys, note) != TS_OK)
            break;
        ts_queue_unit_put(units + (int64_t)count * TS_QUEUE_UNIT_BYTES, offset, note->size,
                          note->tags);
        route_indexes[count] = note->route->index;
        queue_offsets[count++] = note->queue_offset;
        if (note->real != NULL)
            take_request(&requests[(*request_count)++], note, precision_ms);
        offset += note->size;
        *first = INT64_MAX;
    }
    __atomic_store_n(&notes->head, head, __ATOMIC_RELEASE);
    *next = offset;
    return count;
}
