/* The arguments of outside.c and queue.c that other libraries pass. */
#ifndef XP_OUTSIDE_H
#define XP_OUTSIDE_H

#include <stdint.h>

#define XP_OUTSIDE __attribute__((visibility("default")))

/* The memory that a command uses: the first `width` bytes of each row. */
typedef struct {
    uint64_t to, from, to_pitch, from_pitch, width, rows;
    const char *pattern; /* a fill has a pattern, which starts again in each row; a copy has none */
    uint64_t pattern_size;
} xp_work;

#endif
