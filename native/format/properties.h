/* Properties: the text that ends a commit-log record, and the CRC that may end this text.
 *
 *  name 0x01 value 0x02  name 0x01 value 0x02 ...  __CRC32# 0x01 dddddddddd 0x02
 *
 * | what      | bytes | type  | unit | meaning                                                  |
 * |-----------|-------|-------|------|----------------------------------------------------------|
 * | name      | any   | UTF-8 | -    | not empty; without 0x01 and 0x02                         |
 * | 0x01      | 1     | u8    | -    | TS_PROP_NAME_END                                         |
 * | value     | any   | UTF-8 | -    | an empty value counts as missing                         |
 * | 0x02      | 1     | u8    | -    | TS_PROP_PAIR_END; brokers to 5.1.4 omit the last one     |
 *
 * The order of pairs has no meaning. If a name occurs twice, its last value counts. The text has at
 * most 32767 bytes.
 *
 * The CRC pair is exactly the last 20 bytes of the text. Elsewhere it is stale and has no meaning.
 *
 * | offset | bytes | type  | unit | meaning                                                     |
 * |--------|-------|-------|------|-------------------------------------------------------------|
 * | 0      | 8     | ASCII | -    | __CRC32#                                                    |
 * | 8      | 1     | u8    | -    | 0x01                                                        |
 * | 9      | 10    | ASCII | -    | CRC-32 without its top bit, decimal, least significant digit |
 * |        |       |       |      | first, padded with 0 on the right                           |
 * | 19     | 1     | u8    | -    | 0x02                                                        |
 *
 * It covers the record up to these 20 bytes, in its final form: 1094513055 is written 5503154901,
 * and 7 is written 7000000000.
 *
 * Byte order: none, it is text.
 *
 * Valid if and only if: the CRC pair matches, or is absent and the text is UTF-8. Readers skip
 * a pair without 0x01 or with an empty value.
 *
 * Versions: last 0x02 and the CRC since 5.2 of the broker; TS_ID is timerstore 0.1, TS_GROUP
 * and TS_ONCE 0.2.
 */
#ifndef TS_FORMAT_PROPERTIES_H
#define TS_FORMAT_PROPERTIES_H

#include "format/bytes.h"
#include "format/digits.h"
#include "format/group.h"
#include "format/text.h"
#include "format/timer_id.h"

#define TS_PROP_NAME_END 1
#define TS_PROP_PAIR_END 2
#define TS_PROPERTIES_BYTES_MAX 32767

#define TS_PROP_TIMER_DELAY_SEC "TIMER_DELAY_SEC" /* relative delay, seconds */
#define TS_PROP_TIMER_DELAY_MS "TIMER_DELAY_MS" /* relative delay, ms */
#define TS_PROP_TIMER_DELIVER_MS "TIMER_DELIVER_MS" /* absolute deliver time, ms */
#define TS_PROP_TIMER_OUT_MS "TIMER_OUT_MS" /* deliver time aligned to its slot, ms: the one that
                                             * is used */
#define TS_PROP_TIMER_ENQUEUE_MS "TIMER_ENQUEUE_MS" /* write time; the largest i64: never linked */
#define TS_PROP_TIMER_DEQUEUE_MS "TIMER_DEQUEUE_MS" /* wall clock at delivery or roll */
#define TS_PROP_TIMER_ROLL_TIMES "TIMER_ROLL_TIMES" /* number of rolls so far */
#define TS_PROP_TIMER_DEL_UNIQKEY "TIMER_DEL_UNIQKEY" /* of a delete record: the message it
                                                       * deletes */
#define TS_PROP_TIMER_DELAY_LEVEL "TIMER_DELAY_LEVEL" /* defined by brokers, but not used */
#define TS_PROP_REAL_TOPIC "REAL_TOPIC" /* topic of the delivery */
#define TS_PROP_REAL_QID "REAL_QID"
#define TS_PROP_DELAY "DELAY" /* a fixed level, from 1 */
#define TS_PROP_UNIQ_KEY "UNIQ_KEY" /* the client's id of the message */
#define TS_PROP_KEYS "KEYS"
#define TS_PROP_TAGS "TAGS"
#define TS_PROP_WAIT "WAIT" /* "false": the put need not wait for its flush */
#define TS_PROP_CLUSTER "CLUSTER"
#define TS_PROP_PGROUP "PGROUP"
#define TS_PROP_TRACE_CONTEXT "TRACE_CONTEXT"
#define TS_PROP_BORN_TIMESTAMP "BORN_TIMESTAMP"
#define TS_PROP_RETRY_TOPIC "RETRY_TOPIC"
#define TS_PROP_ORIGIN_MESSAGE_ID "ORIGIN_MESSAGE_ID"
#define TS_PROP_TRAN_MSG "TRAN_MSG"
#define TS_PROP_INNER_NUM "INNER_NUM"
#define TS_PROP_INNER_BASE "INNER_BASE"
#define TS_PROP_INNER_MULTI_DISPATCH "INNER_MULTI_DISPATCH"
#define TS_PROP_INNER_MULTI_QUEUE_OFFSET "INNER_MULTI_QUEUE_OFFSET"
#define TS_PROP_TS_ID "TS_ID" /* timer id (timer_id.h) */
#define TS_PROP_TS_GROUP "TS_GROUP" /* records of which a log holds all or none (group.h) */
#define TS_PROP_TS_ONCE "TS_ONCE" /* put with an id of the caller: the time of the first put,
                                   * epoch ms */
#define TS_PROP_CRC32 "__CRC32#" /* CRC of the record; the last pair if present */

/* Sizes without the final zero byte. */
enum {
    TS_PROP_TIMER_DELAY_SEC_BYTES = sizeof(TS_PROP_TIMER_DELAY_SEC) - 1,
    TS_PROP_TIMER_DELAY_MS_BYTES = sizeof(TS_PROP_TIMER_DELAY_MS) - 1,
    TS_PROP_TIMER_DELIVER_MS_BYTES = sizeof(TS_PROP_TIMER_DELIVER_MS) - 1,
    TS_PROP_TIMER_OUT_MS_BYTES = sizeof(TS_PROP_TIMER_OUT_MS) - 1,
    TS_PROP_TIMER_ENQUEUE_MS_BYTES = sizeof(TS_PROP_TIMER_ENQUEUE_MS) - 1,
    TS_PROP_TIMER_DEQUEUE_MS_BYTES = sizeof(TS_PROP_TIMER_DEQUEUE_MS) - 1,
    TS_PROP_TIMER_ROLL_TIMES_BYTES = sizeof(TS_PROP_TIMER_ROLL_TIMES) - 1,
    TS_PROP_TIMER_DEL_UNIQKEY_BYTES = sizeof(TS_PROP_TIMER_DEL_UNIQKEY) - 1,
    TS_PROP_TIMER_DELAY_LEVEL_BYTES = sizeof(TS_PROP_TIMER_DELAY_LEVEL) - 1,
    TS_PROP_REAL_TOPIC_BYTES = sizeof(TS_PROP_REAL_TOPIC) - 1,
    TS_PROP_REAL_QID_BYTES = sizeof(TS_PROP_REAL_QID) - 1,
    TS_PROP_DELAY_BYTES = sizeof(TS_PROP_DELAY) - 1,
    TS_PROP_UNIQ_KEY_BYTES = sizeof(TS_PROP_UNIQ_KEY) - 1,
    TS_PROP_KEYS_BYTES = sizeof(TS_PROP_KEYS) - 1,
    TS_PROP_TAGS_BYTES = sizeof(TS_PROP_TAGS) - 1,
    TS_PROP_WAIT_BYTES = sizeof(TS_PROP_WAIT) - 1,
    TS_PROP_CLUSTER_BYTES = sizeof(TS_PROP_CLUSTER) - 1,
    TS_PROP_PGROUP_BYTES = sizeof(TS_PROP_PGROUP) - 1,
    TS_PROP_TRACE_CONTEXT_BYTES = sizeof(TS_PROP_TRACE_CONTEXT) - 1,
    TS_PROP_BORN_TIMESTAMP_BYTES = sizeof(TS_PROP_BORN_TIMESTAMP) - 1,
    TS_PROP_RETRY_TOPIC_BYTES = sizeof(TS_PROP_RETRY_TOPIC) - 1,
    TS_PROP_ORIGIN_MESSAGE_ID_BYTES = sizeof(TS_PROP_ORIGIN_MESSAGE_ID) - 1,
    TS_PROP_TRAN_MSG_BYTES = sizeof(TS_PROP_TRAN_MSG) - 1,
    TS_PROP_INNER_NUM_BYTES = sizeof(TS_PROP_INNER_NUM) - 1,
    TS_PROP_INNER_BASE_BYTES = sizeof(TS_PROP_INNER_BASE) - 1,
    TS_PROP_INNER_MULTI_DISPATCH_BYTES = sizeof(TS_PROP_INNER_MULTI_DISPATCH) - 1,
    TS_PROP_INNER_MULTI_QUEUE_OFFSET_BYTES = sizeof(TS_PROP_INNER_MULTI_QUEUE_OFFSET) - 1,
    TS_PROP_TS_ID_BYTES = sizeof(TS_PROP_TS_ID) - 1,
    TS_PROP_TS_GROUP_BYTES = sizeof(TS_PROP_TS_GROUP) - 1,
    TS_PROP_TS_ONCE_BYTES = sizeof(TS_PROP_TS_ONCE) - 1,
    TS_PROP_CRC32_BYTES = sizeof(TS_PROP_CRC32) - 1
};

#define TS_PROPERTY_CRC_BYTES 20
#define TS_PROPERTY_CRC_DIGITS 10

_Static_assert(TS_PROP_CRC32_BYTES + 1 + TS_PROPERTY_CRC_DIGITS + 1 == TS_PROPERTY_CRC_BYTES,
               "size of the CRC pair");
_Static_assert(TS_PROPERTIES_BYTES_MAX == INT16_MAX, "their size is an i16");

/* Write a CRC pair. crc31: CRC-32 & 0x7FFFFFFF. */
static inline void ts_property_crc_put(uint8_t *at20, uint32_t crc31)
{
    uint8_t *digits = at20 + TS_PROP_CRC32_BYTES + 1;

    memcpy(at20, TS_PROP_CRC32, TS_PROP_CRC32_BYTES);
    at20[TS_PROP_CRC32_BYTES] = TS_PROP_NAME_END;
    ts_put_u64(digits, ts_digits_of(crc31 % 100000000)); /* least significant digit first */
    digits[8] = (uint8_t)('0' + crc31 / 100000000 % 10);
    digits[9] = (uint8_t)('0' + crc31 / 1000000000);
    at20[TS_PROPERTY_CRC_BYTES - 1] = TS_PROP_PAIR_END;
}

/* Read a CRC pair. Return whether the 20 bytes are one. A value of more than 31 bits, which no
 * writer makes, is returned as UINT32_MAX: still a pair, but one that matches no record. */
static inline int ts_property_crc_get(const uint8_t *at20, uint32_t *crc)
{
    const uint8_t *digits = at20 + TS_PROP_CRC32_BYTES + 1;
    uint64_t high = ts_get_u64(digits + 2), value; /* the last of them is the first digit */

    if (at20[TS_PROPERTY_CRC_BYTES - 1] != TS_PROP_PAIR_END ||
        at20[TS_PROP_CRC32_BYTES] != TS_PROP_NAME_END ||
        memcmp(at20, TS_PROP_CRC32, TS_PROP_CRC32_BYTES) != 0)
        return 0;
    if (!ts_digits_are(high) || (unsigned)digits[0] - '0' > 9 ||
        (unsigned)digits[1] - '0' > 9)
        return 0;
    value = ts_digits_value(high) * 100 + (uint64_t)(digits[1] - '0') * 10 +
            (uint64_t)(digits[0] - '0');
    *crc = value > INT32_MAX ? UINT32_MAX : (uint32_t)value;
    return 1;
}

#endif
