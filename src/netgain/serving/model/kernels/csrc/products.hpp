// The one inner loop of attention: sums of numbers times vectors, for a few queries and vectors at once.
#pragma once

#include "simd.hpp"

namespace products {

inline f32v widen(const float* p) { return load(p); }
inline f32v widen(const uint16_t* p) { return widen_bf16(load_as<u16v>(p)); }
inline f32v widen(const int8_t* p) { return widen_i8(p); }

constexpr int MOST = 6;  // queries at once

// What the numbers are multiplied by: vectors v of step k, in runs of `run` steps. b[k / run * pitch + v] shows vector v of
// the run's first step, the next step's lies `stride` elements behind.
template <class T>
struct Vectors {
    const T* const* b;
    int64_t pitch, run, stride;
};

// For queries q < QUERIES and vectors v < VECTORS, in order of k from begin to end: out[q][v] += a[q][k] * b[k][v]. Rows of a
// and out are `a_pitch` and `out_pitch` floats apart; a sum starts from 0 if `fresh`, else from what is there.
template <class T, int QUERIES, int VECTORS>
inline void block(const float* a, int64_t a_pitch, const Vectors<T>& from, int64_t begin, int64_t end, bool fresh, float* out,
                  int64_t out_pitch) {
    f32v total[QUERIES][VECTORS];
    NG_UNROLL for (int q = 0; q < QUERIES; q++)
        NG_UNROLL for (int v = 0; v < VECTORS; v++) total[q][v] = fresh ? f32v{} : load(out + q * out_pitch + v * LANES);
    for (int64_t k = begin; k < end;) {
        int64_t run = k / from.run, stop = end < (run + 1) * from.run ? end : (run + 1) * from.run;
        const T* at[VECTORS];
        NG_UNROLL for (int v = 0; v < VECTORS; v++) at[v] = from.b[run * from.pitch + v] + (k - run * from.run) * from.stride;
        for (; k < stop; k++) {
            if (QUERIES < VECTORS) {  // keep in registers what is fewer
                f32v number[QUERIES];
                NG_UNROLL for (int q = 0; q < QUERIES; q++) number[q] = splat(a[q * a_pitch + k]);
                NG_UNROLL for (int v = 0; v < VECTORS; v++) {
                    f32v vector = widen(at[v]);
                    NG_UNROLL for (int q = 0; q < QUERIES; q++) total[q][v] = fma(number[q], vector, total[q][v]);
                }
            } else {
                f32v vector[VECTORS];
                NG_UNROLL for (int v = 0; v < VECTORS; v++) vector[v] = widen(at[v]);
                NG_UNROLL for (int q = 0; q < QUERIES; q++) {
                    f32v number = splat(a[q * a_pitch + k]);
                    NG_UNROLL for (int v = 0; v < VECTORS; v++) total[q][v] = fma(number, vector[v], total[q][v]);
                }
            }
            NG_UNROLL for (int v = 0; v < VECTORS; v++) at[v] += from.stride;
        }
    }
    NG_UNROLL for (int q = 0; q < QUERIES; q++)
        NG_UNROLL for (int v = 0; v < VECTORS; v++) store(out + q * out_pitch + v * LANES, total[q][v]);
}

template <class T, int QUERIES>
inline void vectors(const float* a, int64_t a_pitch, Vectors<T> from, int64_t count, int64_t begin, int64_t end, bool fresh,
                    float* out, int64_t out_pitch) {
    constexpr int AT_ONCE = QUERIES > 3 ? 2 : 4;  // 12 sums keep both multipliers of a core busy
    for (; count >= AT_ONCE; count -= AT_ONCE, from.b += AT_ONCE, out += AT_ONCE * LANES)
        block<T, QUERIES, AT_ONCE>(a, a_pitch, from, begin, end, fresh, out, out_pitch);
    for (; count > 0; count--, from.b++, out += LANES) block<T, QUERIES, 1>(a, a_pitch, from, begin, end, fresh, out, out_pitch);
}

// The same for any number of queries up to MOST.
template <class T>
inline void queries(int number, const float* a, int64_t a_pitch, const Vectors<T>& from, int64_t count, int64_t begin,
                    int64_t end, bool fresh, float* out, int64_t out_pitch) {
    switch (number) {
        case 6: return vectors<T, 6>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
        case 5: return vectors<T, 5>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
        case 4: return vectors<T, 4>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
        case 3: return vectors<T, 3>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
        case 2: return vectors<T, 2>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
        case 1: return vectors<T, 1>(a, a_pitch, from, count, begin, end, fresh, out, out_pitch);
    }
}

}  // namespace products
