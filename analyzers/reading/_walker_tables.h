/* What the numbers in events stand for: rows of a plane's tables by id, and strings that are written out. */
#ifndef MOE_PROF_WALKER_TABLES_H
#define MOE_PROF_WALKER_TABLES_H

#include <stdlib.h>

#include "_walker_wire.h"

/* As in columns.py. */
#define ABSENT INT64_MIN
#define NO_STRING (-1)

enum status { WALK_OK = 0, WALK_BAD = 1, WALK_NO_MEMORY = 2 };

/* From the ids of a plane's table to rows. Ids that lie close together are looked up directly, others by
 * bisection: no choice of ids makes a lookup slow. */
typedef struct {
    int64_t *ids; /* ascending */
    int32_t *rows;
    size_t count;
    int32_t *direct; /* row by id, -1 for none */
    uint64_t direct_count;
} id_table;

static inline void id_table_free(id_table *t) {
    free(t->ids);
    free(t->rows);
    free(t->direct);
    memset(t, 0, sizeof *t);
}

static inline int id_table_make(id_table *t, const int64_t *ids, const int32_t *rows, size_t count) {
    memset(t, 0, sizeof *t);
    t->count = count;
    t->ids = malloc((count + 1) * sizeof *ids);
    t->rows = malloc((count + 1) * sizeof *rows);
    if (!t->ids || !t->rows) return WALK_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        t->ids[i] = ids[i];
        t->rows[i] = rows[i];
        if (i && ids[i - 1] >= ids[i]) return WALK_BAD;
    }
    if (count && ids[0] >= 0 && (uint64_t)ids[count - 1] < 8 * (uint64_t)count + 4096) {
        t->direct_count = (uint64_t)ids[count - 1] + 1;
        t->direct = malloc(t->direct_count * sizeof *t->direct);
        if (!t->direct) return WALK_NO_MEMORY;
        memset(t->direct, 0xff, t->direct_count * sizeof *t->direct);
        for (size_t i = 0; i < count; i++) t->direct[ids[i]] = rows[i];
    }
    return WALK_OK;
}

static inline int32_t id_table_row(const id_table *t, int64_t id) {
    if (t->direct) return (uint64_t)id < t->direct_count ? t->direct[id] : -1;
    size_t low = 0, high = t->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < t->count && t->ids[low] == id ? t->rows[low] : -1;
}

typedef struct {
    id_table metadata;   /* event metadata id -> row of the plane's table */
    id_table stats;      /* stat metadata id -> stat, for stats that have a column */
    id_table references; /* stat metadata id -> row of the strings referred to */
} plane_tables;

/* ---- strings written out in events -------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    size_t length;
    uint64_t hash;
} string_entry;

typedef struct {
    string_entry *entries;
    size_t count, capacity;
    int32_t *slots; /* entry + 1, 0 for empty */
    size_t slot_count;
    uint64_t seed; /* secret, so that no file can be made whose strings all collide */
} string_table;

static inline void string_table_free(string_table *t) {
    free(t->entries);
    free(t->slots);
    t->entries = NULL;
    t->slots = NULL;
    t->count = t->capacity = t->slot_count = 0;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
    a ^= b;
    a *= UINT64_C(0x9e3779b97f4a7c15);
    a ^= a >> 29;
    a *= b | 1;
    return a ^ a >> 32;
}

static inline uint64_t hash_bytes(const uint8_t *at, size_t length, uint64_t seed) {
    uint64_t hash = mix(length + 1, seed), word;
    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&word, at, 8);
        hash = mix(hash ^ word, seed);
    }
    if (length) {
        word = 0;
        memcpy(&word, at, length);
        hash = mix(hash ^ word, seed);
    }
    return hash;
}

static inline int string_table_grow(string_table *t) {
    size_t slot_count = t->slot_count ? t->slot_count * 2 : 1024;
    size_t capacity = slot_count / 2;
    int32_t *slots = calloc(slot_count, sizeof *slots);
    string_entry *entries = slots ? realloc(t->entries, capacity * sizeof *entries) : NULL;
    if (!entries) {
        free(slots);
        return WALK_NO_MEMORY;
    }
    for (size_t i = 0; i < t->count; i++) {
        size_t slot = entries[i].hash & (slot_count - 1);
        while (slots[slot]) slot = (slot + 1) & (slot_count - 1);
        slots[slot] = (int32_t)i + 1;
    }
    free(t->slots);
    t->slots = slots;
    t->slot_count = slot_count;
    t->entries = entries;
    t->capacity = capacity;
    return WALK_OK;
}

/* Gives the number of a string, the same for equal strings. The string itself stays where it is. */
static inline int intern(string_table *t, span value, int32_t *number) {
    size_t length = (size_t)(value.end - value.at);
    uint64_t hash = hash_bytes(value.at, length, t->seed);
    if (t->count == t->capacity) {
        if (t->count > INT32_MAX / 4 || string_table_grow(t)) return WALK_NO_MEMORY;
    }
    size_t slot = hash & (t->slot_count - 1);
    for (; t->slots[slot]; slot = (slot + 1) & (t->slot_count - 1)) {
        string_entry *entry = &t->entries[t->slots[slot] - 1];
        if (entry->hash == hash && entry->length == length && !memcmp(entry->at, value.at, length)) {
            *number = t->slots[slot] - 1;
            return WALK_OK;
        }
    }
    t->entries[t->count] = (string_entry){value.at, length, hash};
    *number = (int32_t)t->count++;
    t->slots[slot] = *number + 1;
    return WALK_OK;
}

#endif
