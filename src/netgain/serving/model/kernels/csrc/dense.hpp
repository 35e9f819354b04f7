// Float32, bfloat16 and float16 matrices: panels of 2 vectors of outputs, fused multiply-adds over the inputs in order.
#pragma once

#include <algorithm>

#include "linear.hpp"
#include "simd.hpp"

namespace dense {

constexpr int WIDTH = 2 * LANES;  // outputs in a panel

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

// ROWS rows by PANELS panels.
template <Kind KIND, int ROWS, int PANELS>
inline void tile(const char* panel, size_t stride, const float* x, int64_t ins, float* out, int64_t pitch,
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
    const char* data = static_cast<const char*>(w.data);
    for (int64_t p = begin; p < end;) {
        const char* panel = data + p * stride;
        if (rows == 1 && p + 1 < end) {
            tile<KIND, 1, 2>(panel, stride, x, w.ins, out, pitch, w.outs, p * WIDTH);
            p += 2;
            continue;
        }
        int64_t r = 0;
        auto from = [&](int64_t row) { return x + row * w.ins; };
        auto to = [&](int64_t row) { return out + row * pitch; };
        for (; rows - r >= 6 || rows - r == 5; r += rows - r >= 6 ? 6 : 4) {
            if (rows - r >= 6)
                tile<KIND, 6, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH);
            else
                tile<KIND, 4, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH);
        }
        switch (rows - r) {
            case 4: tile<KIND, 4, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH); break;
            case 3: tile<KIND, 3, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH); break;
            case 2: tile<KIND, 2, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH); break;
            case 1: tile<KIND, 1, 1>(panel, stride, from(r), w.ins, to(r), pitch, w.outs, p * WIDTH); break;
        }
        p++;
    }
}

}  // namespace dense
