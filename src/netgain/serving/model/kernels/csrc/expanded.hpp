// Q4_0, Q4_1 and Q8_0 matrices against float32 activations: their numbers are expanded in registers to what embed_row gives,
// and fused multiply-adds take the inputs in order, so that the bits are those of a float32 matrix of the same numbers.
#pragma once

#include "grouped.hpp"

namespace expanded {

using grouped::GROUP;
using grouped::STEP;
using grouped::WIDTH;

constexpr int MOST_ROWS = 6;  // at once: a number that was expanded is multiplied with so many

// out [ROWS][WIDTH], rows `pitch` floats apart.
template <Kind KIND, int ROWS>
__attribute__((noinline)) void tile(const uint8_t* panel, const float* x, int64_t ins, float* out, int64_t pitch) {
    constexpr bool NIBBLES = KIND != Kind::Q8_0, MINIMUMS = KIND == Kind::Q4_1;
    constexpr int VECTORS = NIBBLES ? 4 : 8, INPUTS = GROUP / VECTORS;  // inputs that a vector has for each output
    f32v total[ROWS] = {};
    for (int64_t k = 0; k < ins; panel += grouped::group_bytes(KIND)) {
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + VECTORS * STEP);
        f32v scale = widen_halves(halves), minimum = MINIMUMS ? widen_halves(halves + LANES) : f32v{};
        for (int s = 0; s < VECTORS; s++, k += INPUTS) {
            u32v word = load_as<u32v>(panel + s * STEP);
            NG_UNROLL for (int i = 0; i < INPUTS; i++) {
                // 4 inputs in the low nibbles of its bytes, then 4 in the high ones; or one in each byte
                i32v quant = NIBBLES ? (i32v)((word >> (i % 4 * 8 + i / 4 * 4)) & 15u) : (i32v)(word << (24 - i % 4 * 8)) >> 24;
                if (KIND == Kind::Q4_0) quant -= 8;
                f32v w = scale * __builtin_convertvector(quant, f32v);
                if (MINIMUMS) w = w + minimum;
                NG_UNROLL for (int r = 0; r < ROWS; r++) total[r] = fma(w, splat(x[r * ins + k + i]), total[r]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++) store(out + r * pitch, total[r]);
}

// Panels begin..end of the matrix.
template <Kind KIND>
inline void panels(const Matrix& w, const float* x, int64_t rows, int64_t begin, int64_t end, float* out, int64_t pitch) {
    int64_t stride = w.ins / GROUP * grouped::group_bytes(KIND), tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t p = begin; p < end; p++)
        for (int64_t t = 0; t < tiles; t++) {
            int64_t row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
            const uint8_t* panel = static_cast<const uint8_t*>(w.data) + p * stride;
            float whole[MOST_ROWS * WIDTH];
            auto run = [&](auto tile) { tile(panel, x + row * w.ins, w.ins, whole, WIDTH); };
            switch (count) {
                case 6: run(tile<KIND, 6>); break;
                case 5: run(tile<KIND, 5>); break;
                case 4: run(tile<KIND, 4>); break;
                case 3: run(tile<KIND, 3>); break;
                case 2: run(tile<KIND, 2>); break;
                case 1: run(tile<KIND, 1>); break;
            }
            size_t valid = size_t(std::min<int64_t>(w.outs - p * WIDTH, WIDTH));
            for (int64_t r = 0; r < count; r++) std::memcpy(out + (row + r) * pitch + p * WIDTH, whole + r * WIDTH, valid * 4);
        }
}

}  // namespace expanded
