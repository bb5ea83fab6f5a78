/* Columns of ts_rows, row by row. */
#ifndef TS_ROWS_H
#define TS_ROWS_H

#include "log/put.h"

static inline ts_given ts_given_of(const uint8_t *texts, const int64_t *offsets, int32_t row)
{
    ts_given given = {NULL, 0};

    if (texts != NULL) {
        given.at = texts + offsets[row];
        given.size = (int32_t)(offsets[row + 1] - offsets[row]);
    }
    return given;
}

#endif
