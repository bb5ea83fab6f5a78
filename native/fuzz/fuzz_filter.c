/* Tag filters: pulled texts, and the tags to find in them.
 *
 * Input: the number of tags and texts and their sizes, then their bytes.
 */
#include "fuzz.h"

#include "format/properties.h"
#include "log/parse.h"

enum { TAGS = 4, TEXTS = 6 };

typedef struct {
    int64_t offsets[TEXTS + 1];
    uint8_t *bytes;
} column;

static void take_column(column *out, fuzz_input *in, int32_t count)
{
    size_t took;

    for (int32_t i = 0; i < count; i++)
        out->offsets[i + 1] = out->offsets[i] + fuzz_byte(in);
    out->bytes = fuzz_take(in, (size_t)out->offsets[count], &took);
    for (int32_t i = 0; i <= count; i++)
        out->offsets[i] = out->offsets[i] < (int64_t)took ? out->offsets[i] : (int64_t)took;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    column tags = {.offsets = {0}}, texts = {.offsets = {0}};
    int32_t tag_count = 1 + fuzz_below(&in, TAGS), count = 1 + fuzz_below(&in, TEXTS), found = 0;
    int32_t hashes[TAGS], kept = 0;
    uint8_t keep[TEXTS];

    take_column(&tags, &in, tag_count);
    take_column(&texts, &in, count);
    for (int32_t i = 0; i < tag_count; i++)
        hashes[i] = ts_java_hash(tags.bytes + tags.offsets[i],
                                 (int32_t)(tags.offsets[i + 1] - tags.offsets[i]));
    for (int32_t i = 1; i < tag_count; i++) { /* ascending, as the caller passes them */
        if (hashes[i] < hashes[i - 1])
            tag_count = i;
    }
    found = ts_texts_tagged(texts.bytes, texts.offsets, count,
                            &(ts_tags){hashes, tags.bytes, tags.offsets, tag_count}, keep);
    for (int32_t i = 0; i < count; i++)
        kept += keep[i];
    CHECK(found == kept);
    free(tags.bytes);
    free(texts.bytes);
    return 0;
}
