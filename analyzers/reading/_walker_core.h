/* The walk over the events of a trace line, and the nesting of intervals: everything the C extension does
 * that does not need Python, so that it can be fuzzed and measured on its own.
 *
 * A trace is untrusted input. Every read is checked against the end of the message it belongs to; lengths are
 * compared with what is left, never added to a pointer first; nothing recurses. Field numbers are those of
 * openxla/xla xla/tsl/profiler/protobuf/xplane.proto; what counts as well-formed follows the protobuf parser,
 * except that groups, a second name of a line, and lengths in more than five bytes are refused.
 */
#ifndef MOE_PROF_WALKER_CORE_H
#define MOE_PROF_WALKER_CORE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#define ABSENT INT64_MIN
#define NO_STRING (-1)
#define USUAL_EVENT_BYTES 48 /* of events with both clocks; room for rows is made by it */
#define HUGE_BLOCK_BYTES (16 << 20)

enum status { WALK_OK = 0, WALK_BAD = 1, WALK_NO_MEMORY = 2 };

/* Columns of events. The order of the stats is that of INT_STATS and STRING_STATS in columns.py. */
enum {
    INT_COUNT = 9,
    STRING_COUNT = 4,
    STAT_STRINGS = INT_COUNT,
    STAT_DEVICE_OFFSET = INT_COUNT + STRING_COUNT,
    STAT_DEVICE_DURATION,
    STAT_COUNT,

    COLUMN_METADATA = 0,
    COLUMN_EVENT_START,
    COLUMN_EVENT_DURATION,
    COLUMN_START,
    COLUMN_DURATION,
    COLUMN_OCCURRENCES,
    COLUMN_STATS,
    COLUMN_COUNT = COLUMN_STATS + INT_COUNT + STRING_COUNT
};

static inline size_t column_width(int column) {
    int narrow = column == COLUMN_METADATA || column == COLUMN_OCCURRENCES ||
                 column >= COLUMN_STATS + STAT_STRINGS;
    return narrow ? sizeof(int32_t) : sizeof(int64_t);
}

/* ---- wire format -------------------------------------------------------------------------------------- */

/* What is left of a message. `limit` is the end of the memory that it lies in, at or after its own end. */
typedef struct {
    const uint8_t *at, *end, *limit;
} span;

#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define WORD_VARINTS 1
#define LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define WORD_VARINTS 0
#define LIKELY(x) (x)
#endif

/* Reads a number of at most `most` bytes. */
static inline int read_varint(span *s, uint64_t *value, int most) {
    const uint8_t *p = s->at;
    uint64_t result = 0;
    if (p < s->end && *p < 0x80) {
        *value = *p;
        s->at = p + 1;
        return 1;
    }
#if WORD_VARINTS
    /* Eight bytes at once: the lowest byte without its top bit is the last; then the groups of seven bits
     * are moved together in three steps. */
    if (LIKELY(s->limit - p >= 8)) {
        uint64_t word, last;
        memcpy(&word, p, 8);
        last = ~word & UINT64_C(0x8080808080808080);
        if (LIKELY(last)) {
            int size = (__builtin_ctzll(last) >> 3) + 1;
            if (size > most || size > s->end - p) return 0;
            word &= (last ^ (last - 1)) & UINT64_C(0x7f7f7f7f7f7f7f7f);
            word = (word & UINT64_C(0x007f007f007f007f)) | (word & UINT64_C(0x7f007f007f007f00)) >> 1;
            word = (word & UINT64_C(0x00003fff00003fff)) | (word & UINT64_C(0x3fff00003fff0000)) >> 2;
            *value = (word & UINT64_C(0x0fffffff)) | (word & UINT64_C(0x0fffffff00000000)) >> 4;
            s->at = p + size;
            return 1;
        }
    }
#endif
    for (int i = 0; i < most; i++) {
        if (p == s->end) return 0;
        uint8_t byte = *p++;
        result |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = result;
            s->at = p;
            return 1;
        }
    }
    return 0;
}

static inline int read_tag(span *s, uint32_t *tag) {
    uint64_t value;
    if (LIKELY(s->at < s->end && *s->at >= 8 && *s->at < 0x80)) {
        *tag = *s->at++;
        return 1;
    }
    if (!read_varint(s, &value, 5) || value > UINT32_MAX || value >> 3 == 0) return 0;
    *tag = (uint32_t)value;
    return 1;
}

/* Reads a length and gives the value it announces; the lengths of a message's own parts stay below 2 GiB. */
static inline int read_bytes(span *s, span *value) {
    uint64_t length;
    if (!read_varint(s, &length, 5) || length > INT32_MAX || length > (uint64_t)(s->end - s->at)) return 0;
    value->at = s->at;
    value->end = s->at = s->at + length;
    value->limit = s->limit;
    return 1;
}

static inline int skip_value(span *s, uint32_t tag) {
    uint64_t number;
    span bytes;
    size_t fixed;
    switch (tag & 7) {
    case 0: return read_varint(s, &number, 10);
    case 2: return read_bytes(s, &bytes);
    case 1: fixed = 8; break;
    case 5: fixed = 4; break;
    default: return 0;
    }
    if ((size_t)(s->end - s->at) < fixed) return 0;
    s->at += fixed;
    return 1;
}

#define FIELD(number, wire_type) ((number) << 3 | (wire_type))

/* Reads the next record of a plane, which can be a line of more than 2 GiB: not by read_bytes. */
static inline int plane_record(span *s, uint32_t *tag, span *value) {
    uint64_t length = 0;
    if (!read_tag(s, tag)) return 0;
    value->at = s->at;
    if ((*tag & 7) == 2) {
        if (!read_varint(s, &length, 10) || length > (uint64_t)(s->end - s->at)) return 0;
        value->at = s->at;
        s->at += length;
    } else if (!skip_value(s, *tag)) {
        return 0;
    }
    value->end = s->at;
    value->limit = s->limit;
    return 1;
}

/* ---- ids to rows -------------------------------------------------------------------------------------- */

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

/* ---- columns ------------------------------------------------------------------------------------------ */

/* Columns grow together; one that is not needed yet has no memory and is filled in when it first is. Growing
 * moves no pages of a large block and touches none, so that memory is what the rows need. */
typedef struct {
    void *data[COLUMN_COUNT];
    int stats[INT_COUNT + STRING_COUNT]; /* those whose columns have memory */
    int stat_count;
    size_t count, capacity;
    string_table strings;
    /* the line being read */
    size_t line_first;
    int host;         /* keep only events with an hlo_op or a step_num */
    int named;        /* whether its name was met */
    int device_clock; /* whether every event so far had both device stats */
    int64_t timestamp_ns;
    uint32_t stats_seen; /* bit per stat that a kept event has */
    int aggregates;      /* whether any kept event is an aggregate */
} columns;

static inline void columns_free(columns *c) {
    for (int i = 0; i < COLUMN_COUNT; i++) {
        free(c->data[i]);
        c->data[i] = NULL;
    }
    string_table_free(&c->strings);
    c->count = c->capacity = 0;
}

/* Asks for huge pages for a large block: ten million rows are 120,000 page faults otherwise. */
static inline void want_huge_pages(void *data, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096;
    if (size < HUGE_BLOCK_BYTES) return;
    uintptr_t first = ((uintptr_t)data + page - 1) & ~(page - 1), last = ((uintptr_t)data + size) & ~(page - 1);
    madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)data;
    (void)size;
#endif
}

/* Makes room for more rows: half as many again, or up to `rows` where that is more. */
static inline int columns_reserve(columns *c, size_t rows) {
    size_t capacity = c->capacity ? c->capacity + c->capacity / 2 : 1024;
    if (capacity < rows) capacity = rows;
    if (capacity > INT32_MAX) capacity = INT32_MAX;
    if (capacity <= c->count) return WALK_NO_MEMORY;
    for (int i = 0; i < COLUMN_COUNT; i++) {
        if (i > COLUMN_EVENT_DURATION && !c->data[i]) continue;
        void *data = realloc(c->data[i], capacity * column_width(i));
        if (!data) return WALK_NO_MEMORY;
        want_huge_pages(data, capacity * column_width(i));
        c->data[i] = data;
    }
    c->capacity = capacity;
    return WALK_OK;
}

/* Gives a column memory, and all rows before this one the value of a row without it. */
static inline int columns_add(columns *c, int column) {
    void *data = malloc(c->capacity * column_width(column));
    if (!data) return WALK_NO_MEMORY;
    want_huge_pages(data, c->capacity * column_width(column));
    if (column == COLUMN_START || column == COLUMN_DURATION) {
        memcpy(data, c->data[column - COLUMN_START + COLUMN_EVENT_START], c->count * sizeof(int64_t));
    } else if (column == COLUMN_OCCURRENCES) {
        for (size_t i = 0; i < c->count; i++) ((int32_t *)data)[i] = 1;
    } else if (column_width(column) == sizeof(int32_t)) {
        for (size_t i = 0; i < c->count; i++) ((int32_t *)data)[i] = NO_STRING;
    } else {
        for (size_t i = 0; i < c->count; i++) ((int64_t *)data)[i] = ABSENT;
    }
    c->data[column] = data;
    if (column >= COLUMN_STATS) c->stats[c->stat_count++] = column - COLUMN_STATS;
    return WALK_OK;
}

/* ---- events ------------------------------------------------------------------------------------------- */

enum { VALUE_NONE, VALUE_DOUBLE, VALUE_INTEGER, VALUE_BYTES, VALUE_REFERENCE };

typedef struct {
    int64_t metadata_id, offset_ps, duration_ps, occurrences;
    int aggregate;
    uint32_t has;                /* bit per stat */
    int64_t number[STAT_COUNT];  /* integer stats; for a string stat the row referred to, or -1 */
    span text[STRING_COUNT];     /* string stats that are written out */
} event;

static inline int parse_stat(span s, const plane_tables *tables, event *e) {
    int64_t id = 0;
    uint64_t number = 0;
    int kind = VALUE_NONE;
    span bytes = {NULL, NULL, NULL};
    uint32_t tag;
    if (LIKELY(s.end - s.at >= 2 && s.at[0] == FIELD(1, 0) && s.at[1] < 0x80)) { /* As profilers write it. */
        id = s.at[1];
        s.at += 2;
    }
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return 0;
        switch (tag) {
        case FIELD(1, 0): {
            uint64_t value;
            if (!read_varint(&s, &value, 10)) return 0;
            id = (int64_t)value;
            break;
        }
        case FIELD(2, 1):
            if (s.end - s.at < 8) return 0;
            memcpy(&number, s.at, 8);
            s.at += 8;
            kind = VALUE_DOUBLE;
            break;
        case FIELD(3, 0):
        case FIELD(4, 0):
            if (!read_varint(&s, &number, 10)) return 0;
            kind = VALUE_INTEGER;
            break;
        case FIELD(7, 0):
            if (!read_varint(&s, &number, 10)) return 0;
            kind = VALUE_REFERENCE;
            break;
        case FIELD(5, 2):
        case FIELD(6, 2):
            if (!read_bytes(&s, &bytes)) return 0;
            kind = VALUE_BYTES;
            break;
        default:
            if (!skip_value(&s, tag)) return 0;
        }
    }
    int32_t stat = id_table_row(&tables->stats, id);
    if (stat < 0 || stat >= STAT_COUNT) return 1;
    if (stat >= STAT_STRINGS && stat < STAT_STRINGS + STRING_COUNT) {
        if (kind == VALUE_BYTES) {
            e->number[stat] = -1;
            e->text[stat - STAT_STRINGS] = bytes;
        } else if (kind == VALUE_REFERENCE) {
            int32_t row = id_table_row(&tables->references, (int64_t)number);
            if (row < 0) return 1;
            e->number[stat] = row;
        } else {
            return 1;
        }
    } else {
        int64_t value = (int64_t)number;
        if (kind == VALUE_DOUBLE) {
            double real;
            memcpy(&real, &number, 8);
            if (!(real >= -9223372036854775808.0 && real < 9223372036854775808.0)) return 1;
            value = (int64_t)real;
        } else if (kind != VALUE_INTEGER) {
            return 1;
        }
        if (value == ABSENT) return 1;
        e->number[stat] = value;
    }
    e->has |= UINT32_C(1) << stat;
    return 1;
}

static inline int parse_event(span s, const plane_tables *tables, event *e) {
    uint32_t tag;
    uint64_t value;
    span stat;
    e->metadata_id = e->offset_ps = e->duration_ps = e->occurrences = 0;
    e->aggregate = 0;
    e->has = 0;
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return 0;
        switch (tag) {
        case FIELD(1, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->metadata_id = (int64_t)value;
            break;
        case FIELD(2, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->offset_ps = (int64_t)value;
            e->aggregate = 0;
            break;
        case FIELD(3, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->duration_ps = (int64_t)value;
            break;
        case FIELD(4, 2):
            if (!read_bytes(&s, &stat) || !parse_stat(stat, tables, e)) return 0;
            break;
        case FIELD(5, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->occurrences = (int64_t)value;
            e->aggregate = 1;
            break;
        default:
            if (!skip_value(&s, tag)) return 0;
        }
    }
    return 1;
}

#define HAS(e, stat) ((e)->has >> (stat) & 1)
enum { STAT_STEP_NUM = 3, STAT_HLO_OP = STAT_STRINGS };

/* Appends one event as a row. */
static inline int store(columns *c, const plane_tables *tables, event *e) {
    if (c->host && !HAS(e, STAT_STEP_NUM) && !HAS(e, STAT_HLO_OP)) return WALK_OK;
    if (c->count == c->capacity) {
        int status = columns_reserve(c, 0);
        if (status) return status;
    }
    size_t row = c->count;
    int64_t start = e->aggregate ? ABSENT : e->offset_ps;
    ((int32_t *)c->data[COLUMN_METADATA])[row] = id_table_row(&tables->metadata, e->metadata_id);
    ((int64_t *)c->data[COLUMN_EVENT_START])[row] = start;
    ((int64_t *)c->data[COLUMN_EVENT_DURATION])[row] = e->duration_ps;
    if (e->aggregate) {
        c->aggregates = 1;
        if (!c->data[COLUMN_OCCURRENCES] && columns_add(c, COLUMN_OCCURRENCES)) return WALK_NO_MEMORY;
    }
    if (c->data[COLUMN_OCCURRENCES]) {
        int64_t count = e->aggregate ? e->occurrences : 1;
        ((int32_t *)c->data[COLUMN_OCCURRENCES])[row] =
            count < 0 ? 0 : count > INT32_MAX ? INT32_MAX : (int32_t)count;
    }
    int device = HAS(e, STAT_DEVICE_OFFSET) && HAS(e, STAT_DEVICE_DURATION);
    if (!device) c->device_clock = 0;
    if (c->device_clock && !c->data[COLUMN_START]) {
        if (columns_add(c, COLUMN_START) || columns_add(c, COLUMN_DURATION)) return WALK_NO_MEMORY;
    }
    if (c->data[COLUMN_START]) {
        int exact = c->device_clock;
        int64_t device_start = e->aggregate ? ABSENT : e->number[STAT_DEVICE_OFFSET];
        ((int64_t *)c->data[COLUMN_START])[row] = exact ? device_start : start;
        ((int64_t *)c->data[COLUMN_DURATION])[row] = exact ? e->number[STAT_DEVICE_DURATION] : e->duration_ps;
    }
    uint32_t wanted = e->has & ((UINT32_C(1) << STAT_DEVICE_OFFSET) - 1);
    if (wanted & ~c->stats_seen) {
        for (int stat = 0; stat < STAT_DEVICE_OFFSET; stat++) {
            if (wanted >> stat & 1 && !c->data[COLUMN_STATS + stat] && columns_add(c, COLUMN_STATS + stat))
                return WALK_NO_MEMORY;
        }
        c->stats_seen |= wanted;
    }
    for (int i = 0; i < c->stat_count; i++) {
        int stat = c->stats[i], column = COLUMN_STATS + stat;
        if (stat < STAT_STRINGS) {
            ((int64_t *)c->data[column])[row] = wanted >> stat & 1 ? e->number[stat] : ABSENT;
            continue;
        }
        int32_t value = NO_STRING;
        if (wanted >> stat & 1) {
            value = (int32_t)e->number[stat];
            if (value < 0) { /* Written out: numbered downwards from -2, beside the rows referred to. */
                int32_t number;
                if (intern(&c->strings, e->text[stat - STAT_STRINGS], &number)) return WALK_NO_MEMORY;
                value = -2 - number;
            }
        }
        ((int32_t *)c->data[column])[row] = value;
    }
    c->count++;
    return WALK_OK;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

/* Starts a line of `size` bytes. Of a host line only ops and steps are kept, so that nothing says how many. */
static inline int line_begin(columns *c, int host, size_t size) {
    size_t rows = c->count + (host ? 0 : size / USUAL_EVENT_BYTES);
    if (rows > c->capacity && columns_reserve(c, rows)) return WALK_NO_MEMORY;
    c->line_first = c->count;
    c->host = host;
    c->named = 0;
    c->device_clock = 1;
    c->timestamp_ns = 0;
    c->stats_seen = 0;
    c->aggregates = 0;
    return WALK_OK;
}

/* Reads a line's records from s->at until one begins at or after `pause`, or the line ends. */
static inline int line_walk(columns *c, const plane_tables *tables, span *s, const uint8_t *pause) {
    uint32_t tag;
    uint64_t value;
    span bytes;
    event e;
    while (s->at < s->end && s->at < pause) {
        if (!read_tag(s, &tag)) return WALK_BAD;
        if (tag == FIELD(4, 2)) {
            if (!read_bytes(s, &bytes) || !parse_event(bytes, tables, &e)) return WALK_BAD;
            int status = store(c, tables, &e);
            if (status) return status;
        } else if (tag == FIELD(3, 0)) {
            if (!read_varint(s, &value, 10)) return WALK_BAD;
            c->timestamp_ns = (int64_t)value;
        } else {
            if (tag == FIELD(2, 2) && c->named++) return WALK_BAD;
            if (!skip_value(s, tag)) return WALK_BAD;
        }
    }
    return WALK_OK;
}

/* Ends a line; where not every event had the device clock, none uses it. */
static inline void line_end(columns *c) {
    size_t count = c->count - c->line_first;
    if (count == 0) c->device_clock = 0;
    if (c->device_clock || !c->data[COLUMN_START] || !count) return;
    for (int i = 0; i < 2; i++) {
        memcpy((int64_t *)c->data[COLUMN_START + i] + c->line_first,
               (int64_t *)c->data[COLUMN_EVENT_START + i] + c->line_first, count * sizeof(int64_t));
    }
}

static inline void line_drop(columns *c) { c->count = c->line_first; }

/* Finds a line's name: that before its first event, else any. Lines that are not read are passed over
 * after this, so a later name is not looked for where there is one. */
static inline int line_name(span s, span *name) {
    span display = {NULL, NULL, NULL}, bytes;
    uint32_t tag;
    name->at = name->end = name->limit = NULL;
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return WALK_BAD;
        if (tag == FIELD(2, 2)) {
            if (!read_bytes(&s, name)) return WALK_BAD;
        } else if (tag == FIELD(11, 2)) {
            if (!read_bytes(&s, &display)) return WALK_BAD;
        } else if (tag == FIELD(4, 2)) {
            if (!read_bytes(&s, &bytes)) return WALK_BAD;
            if (name->at != name->end) return WALK_OK;
        } else if (!skip_value(&s, tag)) {
            return WALK_BAD;
        }
    }
    if (name->at == name->end) *name = display;
    return WALK_OK;
}

/* ---- nesting ------------------------------------------------------------------------------------------ */

static inline int64_t add_capped(int64_t a, int64_t b) { /* b is not negative */
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* a - b as an unsigned distance, 0 where b is the larger. */
static inline uint64_t distance(int64_t a, int64_t b) { return a > b ? (uint64_t)a - (uint64_t)b : 0; }

/* The rule of nesting.py, which explains it; `parent` of rows [first, last) is filled. `stack` has room for
 * last - first rows. */
static inline void nest_line(size_t first, size_t last, const int64_t *start, const int64_t *duration,
                      uint64_t tolerance, int32_t *parent, int32_t *stack) {
    size_t depth = 0;
#define END(row) add_capped(start[row], duration[row] > 0 ? duration[row] : 0)
    for (size_t row = first; row < last; row++) {
        parent[row] = -1;
        if (start[row] == ABSENT) continue;
        int64_t begin = start[row], end = END(row);
        uint64_t half = distance(end, begin) / 2;
        size_t kept = depth;
        while (kept) {
            int64_t outer = END(stack[kept - 1]);
            if (distance(end, outer) <= tolerance && distance(outer, begin) > half) break;
            kept--;
        }
        int32_t enclosing = kept ? stack[kept - 1] : -1;
        parent[row] = enclosing;
        for (size_t i = kept; i < depth; i++) {
            int32_t early = stack[i];
            int64_t early_end = END(early);
            if (parent[early] == enclosing && distance(begin, start[early]) <= tolerance &&
                distance(early_end, end) <= tolerance &&
                distance(early_end, begin) > distance(early_end, start[early]) / 2)
                parent[early] = (int32_t)row;
        }
        stack[kept] = (int32_t)row;
        depth = kept + 1;
    }
#undef END
}

#endif
