// Runs residual blocks, the halves of decoder layers, one after the other: what composed.py does operation by operation,
// with the same bits.
#pragma once

#include <mutex>
#include <vector>

#include "attention.hpp"
#include "linear.hpp"

// Mirrored by ctypes in compiled_stack.py, as are those below. Products with an input in common, side by side in the
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
    int64_t heads, window;
    float eps;
};

struct MlpBlock {
    const float* norm;
    Linear gate_up, down;
    float eps;
};

// One of the two; the other is null.
struct Block {
    const AttentionBlock* attention;
    const MlpBlock* mlp;
};

// Sees, and may change, what a block is about to add to its input [rows, hidden]; ends the run with another value than 0.
using Reduce = int32_t (*)(float* added, int64_t rows);

struct Stack {
    const Block* blocks;
    int64_t count, hidden;
    Reduce reduce;  // or null
};

// Activations between the operations, kept so that a step allocates nothing. Whoever runs a stack locks it.
struct Workspace {
    std::mutex lock;
    std::vector<float> residual[2], added, queries, attended;
    std::vector<int32_t> tiles;
};

// Behind which blocks, in ascending order, what stands there is written to `out` [rows, count * hidden], side by side.
struct Taps {
    const int64_t* blocks;
    int64_t count;
    float* out;
};

// At least one block attends. x [rows, hidden] -> out [count, hidden], for the rows that `picked` names (null: all, count = rows). Every attention block
// writes the KV of all rows into its own of `caches`. cos, sin [rows, dim / 2]. False when `reduce` ended the run.
bool run(Pool& pool, Workspace& work, const Stack& stack, const Rows& rows, const Cache* caches, const float* x,
         const float* cos, const float* sin, const int64_t* picked, int64_t count, const Taps& taps, float* out);
