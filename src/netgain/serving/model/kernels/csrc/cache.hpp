// The paged KV memory: how one block of one kv head lies, and writing to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"

enum class Stored : int32_t { F32 = 0, BF16 = 1, I8 = 2 };

// Mirrored by ctypes in native.py. Keys are [blocks, kv_heads, dim, block_tokens], values [blocks, kv_heads, block_tokens,
// dim], so that both products of attention find vectors of what they sum up to side by side. As I8 every place of a head
// has a float32 scale: keys are followed by those of the block, each row of values by its own.
struct Cache {
    void *keys, *values;
    int64_t kv_heads, dim, tokens;
    Stored stored;

    size_t element() const { return stored == Stored::F32 ? 4 : stored == Stored::BF16 ? 2 : 1; }
    size_t scale() const { return stored == Stored::I8 ? sizeof(float) : 0; }
    size_t row() const { return size_t(dim) * element() + scale(); }  // of values
    size_t tile() const { return size_t(tokens) * row(); }            // of either

    char* key_tile(int64_t block, int64_t head) const { return static_cast<char*>(keys) + size_t(block * kv_heads + head) * tile(); }
    char* value_tile(int64_t block, int64_t head) const {
        return static_cast<char*>(values) + size_t(block * kv_heads + head) * tile();
    }
    // Of the key at `place` of a tile.
    char* key_scale(char* tile, int64_t place) const { return tile + size_t(dim * tokens) + size_t(place) * sizeof(float); }
};

// Where the rows of a batch stand. Mirrored by ctypes in native.py. `tiles` are (first row, rows) pairs: consecutive rows of
// one segment.
struct Rows {
    const int64_t *positions, *segments;
    const int32_t *tables, *tiles;
    int64_t rows, table_blocks, block_tokens, tile_count;

    int64_t block_at(int64_t segment, int64_t place) const { return tables[segment * table_blocks + place / block_tokens]; }
};

// Rows of x [rows, width] to their places in bfloat16 [blocks, block_tokens, width].
void store_row(const Rows& rows, int64_t row, const float* x, int64_t width, uint16_t* plane);

// Keys and values of rows first..first+count, `pitch` floats apart, of which the pointers show the first.
void store_kv(const Rows& rows, const Cache& cache, int64_t first, int64_t count, const float* keys, const float* values,
              int64_t pitch);
