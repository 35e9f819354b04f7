// Paged causal attention over a batch whose rows belong to different segments.
#pragma once

#include <cstdint>

#include "pool.hpp"

// Mirrored by ctypes in compiled.py. `tiles` are (first row, rows) pairs: consecutive rows of one segment.
struct Rows {
    const int64_t *positions, *segments;
    const int32_t *tables, *tiles;
    int64_t rows, table_blocks, block_tokens, tile_count;
};

// A paged tensor [blocks, block_tokens, kv_heads, dim].
struct Cache {
    void *keys, *values;
    int64_t kv_heads, dim;
    int32_t bf16;
};

constexpr int TILE_ROWS = 4;

// Fills `tiles` (room for `rows` pairs). Returns their count, or -1 - row for the first row whose place is not in its
// segment's table.
int64_t plan_tiles(const Rows& rows, int64_t segments, int32_t* tiles, int32_t* last_block);

// Rows of `keys` and of `values` lie `pitch` floats apart.
void store_kv(Pool& pool, const Rows& rows, const Cache& cache, const float* keys, const float* values, int64_t pitch);

// `window` is how many places a row sees, its own among them; 0 stands for all before it.
void attend(Pool& pool, const Rows& rows, const Cache& cache, const float* q, int64_t heads, int64_t window, float* out);
