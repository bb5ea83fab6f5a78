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

static inline ts_slice ts_body_of(const ts_column_batch *rows, int32_t row)
{
    return rows->parts != NULL ? rows->parts[row]
                               : ts_slice_of(rows->bodies, rows->body_offsets, row);
}

#endif
