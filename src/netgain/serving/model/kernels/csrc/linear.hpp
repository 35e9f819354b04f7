// Packed matrices and their products. Outputs lie across lanes and every output sums over its inputs in one fixed order,
// so neither the number of rows computed together nor the thread that computes them can change a bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"

enum class Kind : int32_t { F32 = 0, BF16 = 1, Q4_1 = 2, Q8_0 = 3, F16 = 4, Q4_0 = 5 };

// What activations are rounded to before they are multiplied. F32: not at all, with matrices of any kind; BF16: per number, with
// BF16 matrices; INT8: per group of 32, with Q4_0, Q4_1 and Q8_0.
enum class Input : int32_t { F32 = 0, BF16 = 1, INT8 = 2 };

// Mirrored by ctypes in native.py.
struct Matrix {
    const void* data;
    int64_t outs, ins;
    Kind kind;
    Input input;
};

size_t packed_bytes(int64_t outs, int64_t ins, Kind kind);

// `source`: row-major float32 for F32 and BF16, float16 for F16, raw GGUF blocks for Q4_0, Q4_1 and Q8_0.
void pack(const void* source, int64_t outs, int64_t ins, Kind kind, void* packed);

// x [rows, ins] -> out [rows, sum of the parts' outs]: the products with `count` matrices side by side.
void linear(Pool& pool, const Matrix* parts, int64_t count, const float* x, int64_t rows, float* out);

// Row `token` of `w`, dequantised to float32.
void embed_row(const Matrix& w, int64_t token, float* out);
