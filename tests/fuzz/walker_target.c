/* The fuzz target: one input is a control byte and a line (or plane) message for the walker.
 *
 * Under AddressSanitizer and UBSan a wrong access ends the program; beyond that the target reads back all that
 * the walker says it wrote and checks what must hold for any input. Build and run: `make fuzz`. */
#include <stdio.h>

#include "../../analyzers/reading/_walker_core.h"

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
            abort();                                                             \
        }                                                                        \
    } while (0)

static volatile uint64_t sink;

/* Ids 1 to 15 are the stats that have a column. One huge id makes the kind of table that is bisected. */
static void make_tables(plane_tables *tables, int sparse) {
    int64_t ids[32];
    int32_t rows[32];
    for (int i = 0; i < 32; i++) {
        ids[i] = i + 1;
        rows[i] = i;
    }
    CHECK(id_table_make(&tables->stats, ids, rows, STAT_COUNT) == WALK_OK);
    if (sparse) ids[31] = INT64_MAX;
    CHECK(id_table_make(&tables->metadata, ids, rows, 32) == WALK_OK);
    CHECK(id_table_make(&tables->references, ids, rows, 32) == WALK_OK);
}

static void read_back(const columns *c, const uint8_t *data, size_t size) {
    for (int i = 0; i < COLUMN_COUNT; i++) {
        const uint8_t *bytes = c->data[i];
        for (size_t k = 0; bytes && k < c->count * column_width(i); k++) sink += bytes[k];
    }
    for (size_t i = 0; i < c->strings.count; i++) {
        const string_entry *entry = &c->strings.entries[i];
        CHECK(entry->length == 0 || (entry->at >= data && entry->at + entry->length <= data + size));
    }
    for (int i = STAT_STRINGS; i < STAT_STRINGS + STRING_COUNT; i++) {
        const int32_t *numbers = c->data[COLUMN_STATS + i];
        for (size_t k = 0; numbers && k < c->count; k++)
            CHECK(numbers[k] < 32 && numbers[k] >= -1 - (int64_t)c->strings.count);
    }
}

static void check_nest(const columns *c) {
    size_t rows = c->count;
    int32_t *parent = malloc((rows + 1) * sizeof *parent), *stack = malloc((rows + 1) * sizeof *stack);
    CHECK(parent && stack);
    nest_line(0, rows, c->data[COLUMN_EVENT_START], c->data[COLUMN_EVENT_DURATION], 2000, parent, stack);
    for (size_t i = 0; i < rows; i++) CHECK(parent[i] >= -1 && parent[i] < (int64_t)rows && parent[i] != (int64_t)i);
    free(parent);
    free(stack);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size) {
    if (input_size == 0) return 0;
    uint8_t control = input[0];
    size_t size = input_size - 1;
    uint8_t *data = malloc(size ? size : 1); /* Its own block, so that one byte too far is seen. */
    CHECK(data);
    memcpy(data, input + 1, size);
    span whole = {data, data + size, data + size}, name, value;

    uint32_t tag;
    for (span plane = whole; plane.at < plane.end && plane_record(&plane, &tag, &value);)
        CHECK(value.at >= data && value.end <= data + size && value.at <= value.end);
    if (line_name(whole, &name) == WALK_OK && name.at)
        CHECK(name.at >= data && name.end <= data + size && name.at <= name.end);

    plane_tables tables = {0};
    columns c = {0};
    c.strings.seed = 12345;
    make_tables(&tables, control >> 1 & 1);
    CHECK(columns_reserve(&c, 0) == WALK_OK);
    for (int line = 0; line < 2; line++) { /* The second finds columns that the first made. */
        span s = whole;
        size_t before = c.count;
        CHECK(line_begin(&c, control & 1, size) == WALK_OK);
        int status = line_walk(&c, &tables, &s, data + (size_t)(control >> 2) % (size + 1));
        if (status == WALK_OK) status = line_walk(&c, &tables, &s, s.end);
        CHECK(status != WALK_NO_MEMORY);
        if (status == WALK_OK) {
            CHECK(s.at == s.end);
            line_end(&c);
        } else {
            line_drop(&c);
            CHECK(c.count == before);
        }
        CHECK(c.count - before <= size / 2);
        CHECK(!line || status != WALK_OK || c.count == 2 * before);
        read_back(&c, data, size);
    }
    check_nest(&c);
    columns_free(&c);
    id_table_free(&tables.metadata);
    id_table_free(&tables.stats);
    id_table_free(&tables.references);
    free(data);
    return 0;
}
