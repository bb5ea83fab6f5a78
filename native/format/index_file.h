/* Index file: from message keys to log offsets, by hash.
 *
 *  0            40                  40 + 4 slots
 *  | header     | slots, 4 bytes    | entries, 20 bytes each; the first is never used |
 *
 * Header:
 *
 * | offset | bytes | type | unit    | meaning                                                  |
 * |--------|-------|------|---------|----------------------------------------------------------|
 * | 0      | 8     | i64  | ms      | store time of the first entry's message                  |
 * | 8      | 8     | i64  | ms      | store time of the last entry's message                   |
 * | 16     | 8     | i64  | bytes   | log offset of the first entry's message                  |
 * | 24     | 8     | i64  | bytes   | log offset of the last entry's message                   |
 * | 32     | 4     | i32  | slots   | slots in use                                             |
 * | 36     | 4     | i32  | entries | number of the next entry; the first is 1                 |
 *
 * A slot (i32) is the number of the newest entry of its chain, or 0 if the chain is empty.
 *
 * Entry n, at 40 + 4 slots + 20 n:
 *
 * | offset | bytes | type | unit    | meaning                                                  |
 * |--------|-------|------|---------|----------------------------------------------------------|
 * | 0      | 4     | i32  | -       | hash of the key, not negative; its slot is hash mod slots |
 * | 4      | 8     | i64  | bytes   | log offset of the message                                |
 * | 12     | 4     | i32  | s       | its store time after the file's first, at least 0        |
 * | 16     | 4     | i32  | entries | number of the previous entry of the chain; 0: none       |
 *
 * The key is the text `topic#key`. Its hash is the absolute value of Java's hashCode, or 0 if that
 * does not fit. The seconds of a file's first entry are counted from the last entry of the previous
 * file, because the header holds that entry's time until then. So they must not be read as a time.
 *
 * Byte order: big-endian. Valid if and only if: the length is that of the geometry; the next number
 * is 1 to the number of entries; slots and entries only refer to lower entry numbers.
 *
 * Versions: one in every release. 5.4 of the broker also enters tags, as `topic#T#tag`.
 */
#ifndef TS_FORMAT_INDEX_FILE_H
#define TS_FORMAT_INDEX_FILE_H

#include "format/bytes.h"

#define TS_INDEX_HEADER_BYTES 40
#define TS_INDEX_SLOT_BYTES 4
#define TS_INDEX_ENTRY_BYTES 20

typedef struct {
    int32_t hash;
    int64_t log_offset;
    int32_t seconds;
    int32_t before;
} ts_index_entry;

_Static_assert(TS_INDEX_HEADER_BYTES == 4 * 8 + 2 * 4, "size of an index header");
_Static_assert(TS_INDEX_ENTRY_BYTES == 4 + 8 + 4 + 4, "size of an index entry");

static inline void ts_index_entry_put(uint8_t *at, const ts_index_entry *entry)
{
    ts_put_i32(at, entry->hash);
    ts_put_i64(at + 4, entry->log_offset);
    ts_put_i32(at + 12, entry->seconds);
    ts_put_i32(at + 16, entry->before);
}

static inline void ts_index_entry_get(const uint8_t *at, ts_index_entry *entry)
{
    entry->hash = ts_get_i32(at);
    entry->log_offset = ts_get_i64(at + 4);
    entry->seconds = ts_get_i32(at + 12);
    entry->before = ts_get_i32(at + 16);
}

/* Return the absolute value as Java does. Java's abs leaves the least number negative; it becomes
 * 0. */
static inline int32_t ts_index_hash_of(int32_t java_hash)
{
    if (java_hash >= 0)
        return java_hash;
    return java_hash == INT32_MIN ? 0 : -java_hash;
}

#endif
