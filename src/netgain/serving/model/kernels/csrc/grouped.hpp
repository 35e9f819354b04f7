// Q4_0, Q4_1 and Q8_0 matrices against activations rounded to int8 per group of 32: integer sums within a group are exact, and
// groups are added in order without fused operations, so every instruction set (and plain torch) gives the same bits.
#pragma once

#include "activations.hpp"
#include "group_sums.hpp"

namespace grouped {

constexpr int WIDTH = LANES;                       // outputs in a panel
constexpr int HALVES = LANES * 2;                  // bytes of one float16 per output
constexpr int BYTES_Q4_0 = 4 * STEP + HALVES;      // nibbles, scales
constexpr int BYTES_Q4_1 = 4 * STEP + 2 * HALVES;  // nibbles, scales, minimums
constexpr int BYTES_Q8_0 = 8 * STEP + HALVES;      // bytes, scales

constexpr int group_bytes(Kind kind) { return kind == Kind::Q4_0 ? BYTES_Q4_0 : kind == Kind::Q4_1 ? BYTES_Q4_1 : BYTES_Q8_0; }

// Within a group, vector s holds for each output the 4 inputs from 4s on (Q8_0), or from 8s on in the low nibbles and
// from 8s + 4 on in the high ones (Q4_0 and Q4_1).
inline void pack(const uint8_t* source, int64_t outs, int64_t ins, Kind kind, void* packed) {
    int64_t groups = ins / GROUP;
    int halves = kind == Kind::Q4_1 ? 2 : 1, bytes = 2 * halves + (kind == Kind::Q8_0 ? GROUP : GROUP / 2);
    for (int64_t o = 0; o < outs; o++)
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t* block = source + (o * groups + g) * bytes;
            uint8_t* to = static_cast<uint8_t*>(packed) + (o / WIDTH * groups + g) * group_bytes(kind);
            int lane = int(o % WIDTH);
            if (kind != Kind::Q8_0) {
                const uint8_t* nibbles = block + 2 * halves;
                auto quant = [&](int k) { return k < 16 ? nibbles[k] & 15 : nibbles[k - 16] >> 4; };
                for (int s = 0; s < 4; s++)
                    for (int i = 0; i < 4; i++)
                        to[s * STEP + lane * 4 + i] = uint8_t(quant(8 * s + i) | quant(8 * s + 4 + i) << 4);
                for (int h = 0; h < halves; h++) std::memcpy(to + 4 * STEP + h * HALVES + lane * 2, block + 2 * h, 2);
            } else {
                for (int k = 0; k < GROUP; k++) to[k / 4 * STEP + lane * 4 + k % 4] = block[2 + k];
                std::memcpy(to + 8 * STEP + lane * 2, block, 2);
            }
        }
}

inline void embed_row(const Matrix& w, int64_t o, float* out) {
    int64_t groups = w.ins / GROUP;
    int lane = int(o % WIDTH);
    for (int64_t g = 0; g < groups; g++, out += GROUP) {
        const uint8_t* from = static_cast<const uint8_t*>(w.data) + (o / WIDTH * groups + g) * group_bytes(w.kind);
        auto half = [&](int at) {
            uint16_t h;
            std::memcpy(&h, from + at + lane * 2, 2);
            return widen_half(h);
        };
        if (w.kind != Kind::Q8_0) {
            bool offset = w.kind == Kind::Q4_1;
            float scale = half(4 * STEP), minimum = offset ? half(4 * STEP + HALVES) : 0.0f;
            for (int k = 0; k < GROUP; k++) {
                int byte = from[k / 8 * STEP + lane * 4 + k % 4], quant = k % 8 < 4 ? byte & 15 : byte >> 4;
                out[k] = offset ? scale * float(quant) + minimum : scale * float(quant - 8);
            }
        } else {
            float scale = half(8 * STEP);
            for (int k = 0; k < GROUP; k++) out[k] = scale * float(int8_t(from[k / 4 * STEP + lane * 4 + k % 4]));
        }
    }
}

// Some groups of a panel, and the same groups of some rows.
struct Groups {
    const uint8_t* panel;
    const uint8_t* ahead;  // what to fetch meanwhile, as much as is read of the panel; null: nothing
    const int32_t* records;
    int64_t count;
    bool fresh;  // sums start from 0 and not from what lies in the output
};

// out [ROWS][WIDTH], rows `pitch` floats apart. A function of its own, which leaves the compiler enough registers.
template <Kind KIND, int ROWS>
__attribute__((noinline)) void tile(Groups of, float* out, int64_t pitch) {
    constexpr bool NIBBLES = KIND != Kind::Q8_0, MINIMUMS = KIND == Kind::Q4_1;
    constexpr int SIZE = record(KIND), BYTES = group_bytes(KIND);
    f32v total[ROWS];
    for (int r = 0; r < ROWS; r++) total[r] = of.fresh ? f32v{} : load(out + r * pitch);
    for (int64_t g = 0; g < of.count; g++, of.panel += BYTES, of.records += ROWS * SIZE) {
        if (of.ahead) {
            for (int b = 0; b < BYTES; b += 64) __builtin_prefetch(of.ahead + b, 0, 3);
            of.ahead += BYTES;
        }
        i32v sums[ROWS];
        if (NIBBLES)
            sums_nibbles<KIND, ROWS>(of.panel, of.records, sums);
        else
            sums_q8_0<ROWS>(of.panel, of.records, sums);
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(of.panel + (NIBBLES ? 4 : 8) * STEP);
        f32v scale = widen_halves(halves), minimum = MINIMUMS ? widen_halves(halves + LANES) : f32v{};
        for (int r = 0; r < ROWS; r++) {
            const int32_t* x = of.records + r * SIZE;
            if (KIND == Kind::Q4_0) sums[r] -= word<KIND>(x, WORDS + 1);  // its numbers are nibbles less 8
            f32v term = (scale * number<KIND>(x, WORDS)) * __builtin_convertvector(sums[r], f32v);
            if (MINIMUMS) term = term + minimum * number<KIND>(x, WORDS + 1);
            total[r] = total[r] + term;
        }
    }
    for (int r = 0; r < ROWS; r++) store(out + r * pitch, total[r]);
}

template <Kind KIND>
inline void tile(int64_t rows, const Groups& of, float* out, int64_t pitch) {
    switch (rows) {
#if defined(NG_AVX2) || defined(NG_AVX512)
        case 6: return tile<KIND, 6>(of, out, pitch);
        case 5: return tile<KIND, 5>(of, out, pitch);
#endif
        case 4: return tile<KIND, 4>(of, out, pitch);
        case 3: return tile<KIND, 3>(of, out, pitch);
        case 2: return tile<KIND, 2>(of, out, pitch);
        case 1: return tile<KIND, 1>(of, out, pitch);
    }
}

// Panels begin..end of the matrix, some at a time: so many stay in the second-level cache while all tiles of rows pass, and
// so many groups of a tile in the first-level cache while the panels pass. The first tile's panels come from memory, which is
// slower the more often a pass begins anew, so its groups may fill that cache.
template <Kind KIND>
inline void panels(const Matrix& w, const Activations& x, int64_t begin, int64_t end, float* out, int64_t pitch) {
    constexpr int64_t FROM_MEMORY = 30 << 10, FIRST_LEVEL = 16 << 10, SECOND_LEVEL = 160 << 10;
    int64_t groups = w.ins / GROUP, stride = groups * group_bytes(KIND), together = std::max<int64_t>(1, SECOND_LEVEL / stride);
    for (int64_t p = begin; p < end; p += together)
        for (int64_t t = 0; t < x.tiles(); t++) {
            int64_t row = x.first(t), rows = x.first(t + 1) - row, size = rows * record(KIND);
            int64_t share = t ? FIRST_LEVEL : FROM_MEMORY, chunks = (groups * size * 4 + share - 1) / share;
            for (int64_t c = 0; c < chunks; c++) {
                int64_t g = groups * c / chunks;
                Groups of{nullptr, nullptr, x.tile(t, groups * record(KIND)) + g * size, groups * (c + 1) / chunks - g, c == 0};
                for (int64_t i = p; i < std::min(p + together, end); i++) {
                    of.panel = static_cast<const uint8_t*>(w.data) + i * stride + g * group_bytes(KIND);
                    of.ahead = i + 1 < end ? of.panel + stride : nullptr;
                    float *to = out + row * pitch + i * WIDTH, whole[MOST_ROWS * WIDTH];
                    int64_t valid = w.outs - i * WIDTH;
                    if (valid >= WIDTH) {
                        tile<KIND>(rows, of, to, pitch);
                        continue;
                    }
                    for (int64_t r = 0; r < rows; r++) std::memcpy(whole + r * WIDTH, to + r * pitch, size_t(valid) * 4);
                    tile<KIND>(rows, of, whole, WIDTH);
                    for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * pitch, whole + r * WIDTH, size_t(valid) * 4);
                }
            }
        }
}

}  // namespace grouped
