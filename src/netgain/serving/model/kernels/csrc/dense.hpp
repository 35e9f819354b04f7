// Float32, bfloat16 and float16 matrices: panels of 2 vectors of outputs, fused multiply-adds over the inputs. What meets in
// them is a class: `Floats` below, those of bf16_inputs.hpp.
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

// Float32 inputs in order. A vector of a panel has INPUTS of them for every output, SIZE bytes in all, which are added in
// TURNS; a row of inputs is `pitch` numbers long.
template <Kind KIND>
struct Floats {
    using Number = float;
    static constexpr int INPUTS = KIND == Kind::BF16 ? 2 : 1, TURNS = INPUTS, SIZE = KIND == Kind::F16 ? 2 : 4;
    static int64_t pitch(int64_t ins) { return ins; }

    static f32v weights(const char* from, int turn) {
        if (KIND == Kind::F16) return widen_halves(reinterpret_cast<const uint16_t*>(from));
        u32v word = load_as<u32v>(from);
        return as_float(KIND != Kind::BF16 ? word : turn ? word & 0xffff0000u : word << 16);
    }
    static f32v input(const float* row, int64_t k, int turn) { return splat(row[k + turn]); }
    static f32v add(f32v total, f32v w, f32v x) { return fma(w, x, total); }
};

// ROWS rows by PANELS panels.
template <class Numbers, int ROWS, int PANELS>
inline void tile(const char* panel, size_t stride, Ahead ahead, const typename Numbers::Number* x, int64_t ins, float* out,
                 int64_t pitch, int64_t outs, int64_t first) {
    constexpr int V = 2 * PANELS, INPUTS = Numbers::INPUTS, TURNS = Numbers::TURNS, SIZE = Numbers::SIZE;
    f32v total[ROWS][V];
    NG_UNROLL for (int r = 0; r < ROWS; r++)
        NG_UNROLL for (int v = 0; v < V; v++) total[r][v] = f32v{};
    for (int64_t k = 0; k < ins; k += INPUTS, panel += WIDTH * SIZE) {
        // The odd input past the end, if any, meets a zero weight, and is left out because it may lie outside x.
        int turns = TURNS == 2 && k + 1 == ins ? 1 : TURNS;
        if (ahead.line) {
            __builtin_prefetch(ahead.line, 0, 2);
            ahead.line += ahead.step;
        }
        NG_UNROLL for (int turn = 0; turn < TURNS; turn++) {
            if (turn == turns) break;
            decltype(Numbers::weights(panel, turn)) w[V];
            NG_UNROLL for (int v = 0; v < V; v++) w[v] = Numbers::weights(panel + v / 2 * stride + v % 2 * LANES * SIZE, turn);
            NG_UNROLL for (int r = 0; r < ROWS; r++) {
                auto input = Numbers::input(x + r * Numbers::pitch(ins), k, turn);
                NG_UNROLL for (int v = 0; v < V; v++) {
                    total[r][v] = Numbers::add(total[r][v], w[v], input);
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

// `x`: rows of `ins` inputs, which are as many as the matrix has, or one more to make them even.
template <class Numbers>
inline void panels(const Matrix& w, const typename Numbers::Number* x, int64_t ins, int64_t rows, int64_t begin, int64_t end,
                   float* out, int64_t pitch) {
    size_t stride = panel_bytes(w.ins, w.kind);
    int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, steps = (ins + Numbers::INPUTS - 1) / Numbers::INPUTS;
    for (int64_t p = begin; p < end;) {
        const char* panel = static_cast<const char*>(w.data) + p * stride;
        if (rows == 1 && p + 1 < end) {
            tile<Numbers, 1, 2>(panel, stride, {}, x, ins, out, pitch, w.outs, p * WIDTH);
            p += 2;
            continue;
        }
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = rows * t / tiles;
            // Each of several tiles fetches its share of the next panel, so that memory has work all the time.
            Ahead ahead{};
            if (tiles > 1 && p + 1 < end) ahead = {panel + stride + stride * t / tiles, int64_t(stride) / steps / tiles};
            auto run = [&](auto tile) { tile(panel, stride, ahead, x + r * Numbers::pitch(ins), ins, out + r * pitch, pitch, w.outs, p * WIDTH); };
            switch (rows * (t + 1) / tiles - r) {
                case 5: run(tile<Numbers, 5, 1>); break;
                case 4: run(tile<Numbers, 4, 1>); break;
                case 3: run(tile<Numbers, 3, 1>); break;
                case 2: run(tile<Numbers, 2, 1>); break;
                case 1: run(tile<Numbers, 1, 1>); break;
            }
        }
        p++;
    }
}

}  // namespace dense
