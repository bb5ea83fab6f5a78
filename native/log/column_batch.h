/* Access to the rows of a ts_column_batch. */
#ifndef TS_COLUMN_BATCH_H
#define TS_COLUMN_BATCH_H

#include "log/put.h"

static inline ts_slice ts_slice_of(const uint8_t *texts, const int64_t *offsets, int32_t row)
{
    ts_slice given = {NULL, 0};

    if (texts != NULL) {
        given.at = texts + offsets[row];
        given.size = (int32_t)(offsets[row + 1] - offsets[row]);
    }
    return given;
}

#endif
