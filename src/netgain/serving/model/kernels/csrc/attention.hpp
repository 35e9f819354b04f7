// Paged causal attention over a batch whose rows belong to different segments.
#pragma once

#include <cstdint>

#include "cache.hpp"
#include "pool.hpp"

constexpr int TILE_ROWS = 16;

// Fills `tiles` (room for `rows` pairs). Returns their count, or -1 - row for the first row whose place is not in its
// segment's table.
int64_t plan_tiles(const Rows& rows, int64_t segments, int32_t* tiles, int32_t* last_block);

// Queries and what comes of them are [rows, heads * dim]; `window` is how many places a row sees, its own among them; 0
// stands for all before it.
struct Attention {
    const Rows& rows;
    const Cache& cache;
    const float* queries;
    int64_t heads, window;
    float* out;
};

// All rows, shared out among the threads of the pool.
void attend(Pool& pool, const Attention& job);

// The rows of tiles begin..end by the calling thread alone, with the same bits.
void attend_tiles(const Attention& job, int64_t begin, int64_t end);
