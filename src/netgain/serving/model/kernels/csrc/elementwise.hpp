// Operations on single rows: norm, activation, rotation, and how rows are shared out among threads.
#pragma once

#include <algorithm>
#include <limits>

#include "pool.hpp"
#include "simd.hpp"

// body(r) for every row of `elements` each, in several threads where that pays.
template <class Body>
void each_row(Pool& pool, int64_t rows, int64_t elements, const Body& body) {
    constexpr int64_t SERIAL = 16384;  // elements below which waking another thread costs more than it saves
    int64_t pieces = rows * elements < SERIAL ? 1 : std::min<int64_t>(rows, pool.threads() * 4);
    pool.each(int(pieces), [&](int piece) {
        for (int64_t r = rows * piece / pieces; r < rows * (piece + 1) / pieces; r++) body(r);
    });
}

// x / sqrt(mean(x**2) + eps) * weight. Lane sums in order, a scalar tail, then the lanes.
inline void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out) {
    f32v squares{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < n; i++) total += x[i] * x[i];
    float scale = 1.0f / std::sqrt(total / float(n) + eps);
    for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < n; i++) out[i] = x[i] * scale * weight[i];
}

inline void silu_mul_row(const float* gate, int64_t n, float* out) {
    const float* up = gate + n;
    auto apply = [](f32v g, f32v u) { return g / (1.0f + exp(-g)) * u; };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, apply(load(gate + i), load(up + i)));
    if (i < n) {
        float g[LANES] = {}, u[LANES] = {};
        std::memcpy(g, gate + i, size_t(n - i) * 4);
        std::memcpy(u, up + i, size_t(n - i) * 4);
        f32v y = apply(load(g), load(u));
        std::memcpy(out + i, &y, size_t(n - i) * 4);
    }
}

// Pairs (i, i + half) of each head turned by the angle whose cosine and sine are given.
inline void rope_row(const float* x, const float* cos, const float* sin, int64_t heads, int64_t half, float* out) {
    for (int64_t h = 0; h < heads; h++, x += 2 * half, out += 2 * half) {
        int64_t i = 0;
        for (; i + LANES <= half; i += LANES) {
            f32v a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
            store(out + i, a * c - b * s);
            store(out + half + i, b * c + a * s);
        }
        for (; i < half; i++) {
            float a = x[i], b = x[half + i];
            out[i] = a * cos[i] - b * sin[i];
            out[half + i] = b * cos[i] + a * sin[i];
        }
    }
}

// Where the highest value stands first; -1 if it is no finite number, or any value is NaN. Each lane keeps its own first.
inline int64_t argmax_row(const float* x, int64_t n) {
    constexpr float LOWEST = -std::numeric_limits<float>::infinity();
    f32v best = splat(LOWEST);
    i32v at = i32v{} - 1, place, bad{};
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    auto take = [&](f32v v) {
        bad |= v != v;
        i32v higher = v > best;
        best = higher ? v : best;
        at = higher ? place : at;
        place += LANES;
    };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) take(load(x + i));
    if (i < n) {
        f32v rest = splat(LOWEST);
        std::memcpy(&rest, x + i, size_t(n - i) * 4);
        take(rest);
    }
    int64_t first = -1;
    float highest = LOWEST;
    for (int lane = 0; lane < LANES; lane++) {
        if (bad[lane]) return -1;
        if (best[lane] > highest || (best[lane] == highest && at[lane] >= 0 && at[lane] < first)) highest = best[lane], first = at[lane];
    }
    return highest < std::numeric_limits<float>::infinity() ? first : -1;
}
