/* Look-ups in ascending arrays. */
#ifndef TS_SORTED_H
#define TS_SORTED_H

#include <stdint.h>

/* Return the index of the number, or -1. */
static inline int64_t ts_place_among(const int64_t *numbers, int64_t count, int64_t number)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (numbers[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && numbers[low] == number ? low : -1;
}

static inline int32_t ts_is_among(const int64_t *numbers, int64_t count, int64_t number)
{
    return ts_place_among(numbers, count, number) >= 0;
}

#endif
