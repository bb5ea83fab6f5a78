/* Property texts for the tests of the two readers (property_texts.c). */
#ifndef TS_TEST_PROPERTY_TEXTS_H
#define TS_TEST_PROPERTY_TEXTS_H

#include "check.h"

#include "format/properties.h"
#include "log/encode.h"
#include "log/parse.h"

enum { TEXT_ROOM = 4096, PAIRS_MAX = 24 };

typedef struct {
    int32_t size;
    uint8_t at[TEXT_ROOM];
} text;

void put_bytes(text *out, const void *from, int32_t size);
void put_string(text *out, const char *name, const char *value);
void put_number(text *out, const char *name, int64_t number);
void put_word(text *out, uint64_t *seed, const char *name, int32_t size);
void put_users(text *out, uint64_t *seed);
void put_crc(text *out, uint64_t *seed);
void put_id(text *out, uint64_t *seed);
void put_due(text *out, uint64_t *seed);
void put_target(text *out, uint64_t *seed);
void put_source(text *out, uint64_t *seed);
void put_times(text *out, uint64_t *seed);
int check_both(const uint8_t *bytes, int32_t size);
int check_text(const text *from);

#endif
