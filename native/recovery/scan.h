/* The meaning of a record for the fold, shared by all readers of the log. */
#ifndef TS_SCAN_H
#define TS_SCAN_H

#include "log/parse.h"

/* Return the enum ts_kind of a record in a topic of this enum ts_route_kind. */
int32_t ts_record_kind(const ts_record *record, int32_t route_kind, const ts_marks *marks);

/* Set all fields of *out except topic_hash and route. */
void ts_record_describe(const ts_record *record, int32_t route_kind, const ts_marks *marks,
                        int64_t precision_ms, ts_scanned *out);

#endif
