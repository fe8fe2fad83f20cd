/* The protobuf wire format, read from untrusted bytes.
 *
 * Every read is checked against the end of the message it belongs to; lengths are compared with what is left,
 * never added to a pointer first. What counts as well-formed follows the protobuf parser, except that groups and
 * lengths in more than five bytes are refused. */
#ifndef MOE_PROF_WALKER_WIRE_H
#define MOE_PROF_WALKER_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

#endif
