// The two halves of a decoder layer, each in one call: what composed.py does operation by operation, with the same bits.
#pragma once

#include "attention.hpp"
#include "linear.hpp"

// Mirrored by ctypes in compiled_blocks.py, as are the two below. Products with an input in common, side by side in the
// output, and the vector added to them (null: none).
struct Linear {
    const Matrix* parts;
    int64_t count;
    const float* bias;
};

// `query_norm` and `key_norm` [dim] are null where heads are not normalised; a `window` of 0 is none.
struct AttentionBlock {
    const float *norm, *query_norm, *key_norm;
    Linear qkv, output;
    int64_t hidden, heads, window;
    float eps;
};

struct MlpBlock {
    const float* norm;
    Linear gate_up, down;
    int64_t hidden;
    float eps;
};

// x [rows, hidden] -> what is added to it [count, hidden], for the rows that `picked` names (null: all, count = rows).
// Writes the KV of every row. cos, sin [rows, dim / 2].
void attention_block(Pool& pool, const AttentionBlock& block, const Rows& rows, const Cache& cache, const float* x,
                     const float* cos, const float* sin, const int64_t* picked, int64_t count, float* out);

void mlp_block(Pool& pool, const MlpBlock& block, const float* x, int64_t rows, float* out);
