/* Property texts, with every reader. The fast readers must agree with the complete one.
 *
 * Input: the text. The fast reader runs twice: the second time it knows the tail of the first text.
 */
#include "fuzz.h"

#include "format/properties.h"
#include "log/message_names.h"
#include "log/parse.h"

static int is_same(const ts_text *a, const ts_text *b)
{
    return a->size == b->size && a->at == b->at;
}

static void compare(const ts_marks *quick, const ts_marks *whole)
{
    CHECK(quick->broken == whole->broken);
    CHECK(quick->out_ms == whole->out_ms && quick->deliver_ms == whole->deliver_ms);
    CHECK(quick->timer_id == whole->timer_id);
    CHECK(quick->timer_id < 0 || quick->store_id == whole->store_id);
    CHECK(quick->real_queue == whole->real_queue && quick->roll_times == whole->roll_times);
    CHECK(quick->delay_level == whole->delay_level && quick->relative == whole->relative);
    CHECK(is_same(&quick->real_topic, &whole->real_topic));
    CHECK(is_same(&quick->delete_key, &whole->delete_key));
    CHECK(ts_marks_usable(quick) == ts_marks_usable(whole));
    CHECK(ts_marks_due(quick, 1000) == ts_marks_due(whole, 1000));
}

static void read_names(const uint8_t *text, int32_t size, const ts_marks *marks)
{
    ts_names names;
    ts_text name, value, tags = {NULL, 0}, keys = {NULL, 0};
    int32_t at = 0;

    ts_names_get(text, size, &names);
    while (ts_pair_next(text, size, &at, &name, &value)) {
        CHECK(name.at >= text && name.at + name.size < text + size);
        CHECK(value.at > name.at && value.at + value.size <= text + size);
        if (value.size > 0 && TS_IS(&name, "TAGS"))
            tags = value;
        if (value.size > 0 && TS_IS(&name, "KEYS"))
            keys = value;
    }
    CHECK(is_same(&names.tags, &tags) && is_same(&names.keys, &keys));
    CHECK(is_same(&names.tags, &marks->tags));
    CHECK(is_same(&names.unique_key, &marks->unique_key));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    ts_tail tail = {.real_size = 0};
    ts_marks quick, whole;
    size_t took;
    uint8_t *text = fuzz_take(&in, TS_PROPERTIES_BYTES_MAX, &took);
    int32_t length = (int32_t)took;

    ts_marks_get(text, length, &whole);
    for (int32_t i = 0; i < 2; i++) {
        ts_marks_get_timer(text, length, &tail, &quick);
        compare(&quick, &whole);
    }
    read_names(text, length, &whole);
    CHECK(ts_properties_due(text, length, 1000) == ts_marks_due(&whole, 1000));
    (void)ts_topic_hash(text, length);
    (void)ts_identity(text, length);
    free(text);
    return 0;
}
