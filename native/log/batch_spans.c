/* Checks of a batch's columns, each in one pass: spans of bodies, due times. */
#include "timerstore.h"

int64_t ts_spans_largest(const int64_t *offsets, int64_t count, int64_t bytes)
{
    int64_t largest = 0;

    if (offsets[0] < 0 || offsets[count] > bytes)
        return -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = offsets[i], end = offsets[i + 1];

        if (end < begin)
            return -1;
        if (end - begin > largest)
            largest = end - begin;
    }
    return largest;
}

int64_t ts_due_settle(int64_t *due_ms, int64_t count, int64_t now_ms, int64_t latest_ms)
{
    int64_t beyond = -1;

    for (int64_t i = count - 1; i >= 0; i--) {
        if (due_ms[i] > latest_ms)
            beyond = i;
        if (due_ms[i] <= now_ms)
            due_ms[i] = 0;
    }
    return beyond;
}
