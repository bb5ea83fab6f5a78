/* The times that delivery adds to the properties of a message. */
#ifndef TS_DELIVERY_TIMES_H
#define TS_DELIVERY_TIMES_H

#include "log/encode.h"

typedef struct {
    int64_t write_ms;      /* of the text below */
    uint8_t text[80];      /* TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS, at most 38 bytes each */
    int32_t size;          /* 0: no text yet */
} ts_delivery_times;

static inline const ts_delivery_times *ts_delivery_times_of(ts_delivery_times *times,
                                                            int64_t write_ms, int64_t now_ms)
{
    if (times->size == 0 || times->write_ms != write_ms) {
        uint8_t *end = TS_COPY_NUMBER(times->text, "TIMER_ENQUEUE_MS", write_ms);

        end = TS_COPY_NUMBER(end, "TIMER_DEQUEUE_MS", now_ms);
        times->size = (int32_t)(end - times->text);
        times->write_ms = write_ms;
    }
    return times;
}

#endif
