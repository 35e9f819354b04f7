// Float32, bfloat16 and float16 matrices: panels of 2 vectors of outputs, fused multiply-adds over the inputs in order.
#pragma once

#include <algorithm>

#include "linear.hpp"
#include "simd.hpp"

namespace dense {

constexpr int WIDTH = 2 * LANES;  // outputs in a panel
constexpr int MOST_ROWS = 5;      // at once: their sums fill the registers

// Float32 and float16: [ins][WIDTH]. Bfloat16: [(ins + 1) / 2][WIDTH] words, the even input in the low half, the odd in
// the high.
inline size_t panel_bytes(int64_t ins, Kind kind) {
    return kind == Kind::BF16 ? size_t((ins + 1) / 2) * WIDTH * 4 : size_t(ins) * WIDTH * (kind == Kind::F32 ? 4 : 2);
}

inline void pack(const void* source, int64_t outs, int64_t ins, Kind kind, void* packed) {
    for (int64_t o = 0; o < outs; o++) {
        char* panel = static_cast<char*>(packed) + o / WIDTH * panel_bytes(ins, kind);
        int64_t lane = o % WIDTH;
        for (int64_t k = 0; k < ins; k++) {
            const float* numbers = static_cast<const float*>(source) + o * ins;
            if (kind == Kind::F32)
                reinterpret_cast<float*>(panel)[k * WIDTH + lane] = numbers[k];
            else if (kind == Kind::BF16)
                reinterpret_cast<uint16_t*>(panel)[(k / 2 * WIDTH + lane) * 2 + k % 2] = narrow_bf16(numbers[k]);
            else
                reinterpret_cast<uint16_t*>(panel)[k * WIDTH + lane] = static_cast<const uint16_t*>(source)[o * ins + k];
        }
    }
}

inline void embed_row(const Matrix& w, int64_t o, float* out) {
    const char* panel = static_cast<const char*>(w.data) + o / WIDTH * panel_bytes(w.ins, w.kind);
    int64_t lane = o % WIDTH;
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel);
    for (int64_t k = 0; k < w.ins; k++) switch (w.kind) {
            case Kind::F32: out[k] = reinterpret_cast<const float*>(panel)[k * WIDTH + lane]; break;
            case Kind::BF16: out[k] = widen_bf16(halves[(k / 2 * WIDTH + lane) * 2 + k % 2]); break;
            default: out[k] = widen_half(halves[k * WIDTH + lane]);
        }
}

// What to fetch while a tile is computed: a line at each step over the inputs; null: nothing.
struct Ahead {
    const char* line;
    int64_t step;
};

// ROWS rows by PANELS panels.
template <Kind KIND, int ROWS, int PANELS>
inline void tile(const char* panel, size_t stride, Ahead ahead, const float* x, int64_t ins, float* out, int64_t pitch,
                 int64_t outs, int64_t first) {
    constexpr int V = 2 * PANELS;
    constexpr bool BF16 = KIND == Kind::BF16;
    constexpr int STEPS = BF16 ? 2 : 1;                // inputs in a vector
    constexpr int SIZE = KIND == Kind::F16 ? 2 : 4;    // bytes that an output takes in it
    f32v total[ROWS][V];
    NG_UNROLL for (int r = 0; r < ROWS; r++)
        NG_UNROLL for (int v = 0; v < V; v++) total[r][v] = f32v{};
    for (int64_t k = 0; k < ins; k += STEPS, panel += WIDTH * SIZE) {
        // The odd input past the end, if any, meets a zero weight, and is left out because it may lie outside x.
        int steps = BF16 && k + 1 == ins ? 1 : STEPS;
        if (ahead.line) {
            __builtin_prefetch(ahead.line, 0, 2);
            ahead.line += ahead.step;
        }
        NG_UNROLL for (int step = 0; step < STEPS; step++) {
            if (step == steps) break;
            f32v w[V];
            NG_UNROLL for (int v = 0; v < V; v++) {
                const char* from = panel + v / 2 * stride + v % 2 * LANES * SIZE;
                if (KIND == Kind::F16) {
                    w[v] = widen_halves(reinterpret_cast<const uint16_t*>(from));
                } else {
                    u32v word = load_as<u32v>(from);
                    w[v] = as_float(!BF16 ? word : step ? word & 0xffff0000u : word << 16);
                }
            }
            NG_UNROLL for (int r = 0; r < ROWS; r++) {
                f32v input = splat(x[r * ins + k + step]);
                NG_UNROLL for (int v = 0; v < V; v++) {
                    total[r][v] = fma(w[v], input, total[r][v]);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < V; v++) {
            int64_t o = first + v * LANES;
            int64_t valid = std::clamp<int64_t>(outs - o, 0, LANES);
            std::memcpy(out + r * pitch + o, &total[r][v], size_t(valid) * 4);
        }
}

template <Kind KIND>
inline void panels(const Matrix& w, const float* x, int64_t rows, int64_t begin, int64_t end, float* out,
                   int64_t pitch) {
    size_t stride = panel_bytes(w.ins, w.kind);
    int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, steps = KIND == Kind::BF16 ? (w.ins + 1) / 2 : w.ins;
    for (int64_t p = begin; p < end;) {
        const char* panel = static_cast<const char*>(w.data) + p * stride;
        if (rows == 1 && p + 1 < end) {
            tile<KIND, 1, 2>(panel, stride, {}, x, w.ins, out, pitch, w.outs, p * WIDTH);
            p += 2;
            continue;
        }
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = rows * t / tiles;
            // Each of several tiles fetches its share of the next panel, so that memory has work all the time.
            Ahead ahead{};
            if (tiles > 1 && p + 1 < end) ahead = {panel + stride + stride * t / tiles, int64_t(stride) / steps / tiles};
            auto run = [&](auto tile) { tile(panel, stride, ahead, x + r * w.ins, w.ins, out + r * pitch, pitch, w.outs, p * WIDTH); };
            switch (rows * (t + 1) / tiles - r) {
                case 5: run(tile<KIND, 5, 1>); break;
                case 4: run(tile<KIND, 4, 1>); break;
                case 3: run(tile<KIND, 3, 1>); break;
                case 2: run(tile<KIND, 2, 1>); break;
                case 1: run(tile<KIND, 1, 1>); break;
            }
        }
        p++;
    }
}

}  // namespace dense
