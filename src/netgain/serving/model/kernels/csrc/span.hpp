// Spans of places: what a row sees of them, and where their keys and values lie in the paged cache.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.hpp"
#include "simd.hpp"

namespace spans {

// Places are read in spans aligned to absolute position. A row's result is made of one partial result per span (maximum,
// sum, weighted values), merged in order, so it depends on the row's position alone: not on the rows beside it, and not on
// how tiles, heads and spans are shared among threads.
constexpr int SPAN = 128;

inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

// Places first..end of a span, counted from the span's begin.
struct Places {
    int64_t begin, end;
    bool none() const { return begin >= end; }
};

// Some rows of one tile with the queries of one kv head: n = count * group queries, ordered by row, then head.
struct Part {
    const Attention& job;
    int64_t first, count, kv_head;

    int64_t group() const { return job.heads / job.cache.kv_heads; }
    int64_t queries() const { return count * group(); }
    int64_t width() const { return padded(job.cache.dim); }
    int64_t segment() const { return job.rows.segments[first]; }
    int64_t end(int64_t row) const { return job.rows.positions[first + row] + 1; }
    int64_t begin(int64_t row) const { return job.window ? std::max<int64_t>(end(row) - job.window, 0) : 0; }

    // What a row sees of a span.
    Places seen(int64_t row, int64_t span) const {
        auto within = [&](int64_t place) { return std::clamp<int64_t>(place - span * SPAN, 0, SPAN); };
        return {within(begin(row)), within(end(row))};
    }
    // Spans that any row sees.
    Places spans() const {
        Places of{INT64_MAX, 0};
        for (int64_t r = 0; r < count; r++) of = {std::min(of.begin, begin(r) / SPAN), std::max(of.end, (end(r) - 1) / SPAN + 1)};
        return of;
    }
};

// What a thread keeps between calls.
struct Scratch {
    std::vector<float> queries, scores, state, partial, keys, values, records;
    std::vector<const void*> pointers;
    std::vector<Places> seen;

    static Scratch& mine() {
        static thread_local Scratch one;
        return one;
    }
};

inline float* room(std::vector<float>& v, int64_t size) {
    if (v.size() < size_t(size)) v.resize(size_t(size));
    return v.data();
}

// Where a span's keys and values lie, and what each row of a part sees of it.
template <class T>
struct Span {
    Places all;
    const Places* seen;           // by row
    const T* keys[SPAN / LANES];  // the vectors of keys, at their first dimension
    const T* const* values;       // the vectors of values by run, at the run's first place
    int64_t key_stride, value_stride, run;
    float key_scales[SPAN], value_scales[SPAN];
};

// Blocks as they lie, if vectors fit them.
template <class T>
void point(const Part& part, int64_t number, Span<T>& span) {
    const Cache& cache = part.job.cache;
    int64_t tokens = cache.tokens, vectors = cache.dim / LANES;
    auto& pointers = Scratch::mine().pointers;
    if (pointers.size() < size_t(SPAN / tokens * vectors)) pointers.resize(size_t(SPAN / tokens * vectors));
    const T** by_run = reinterpret_cast<const T**>(pointers.data());
    span.values = by_run, span.key_stride = tokens, span.value_stride = int64_t(cache.row() / sizeof(T)), span.run = tokens;
    for (int64_t place = span.all.begin / tokens * tokens; place < span.all.end; place += tokens) {
        int64_t block = part.job.rows.block_at(part.segment(), number * SPAN + place);
        char *keys = cache.key_tile(block, part.kv_head), *values = cache.value_tile(block, part.kv_head);
        for (int64_t v = 0; v < tokens / LANES; v++) span.keys[place / LANES + v] = reinterpret_cast<const T*>(keys) + v * LANES;
        for (int64_t v = 0; v < vectors; v++) by_run[place / tokens * vectors + v] = reinterpret_cast<const T*>(values) + v * LANES;
        if (cache.stored == Stored::I8)
            for (int64_t j = 0; j < tokens; j++) {
                std::memcpy(span.key_scales + place + j, cache.key_scale(keys, j), sizeof(float));
                std::memcpy(span.value_scales + place + j, values + size_t(j) * cache.row() + cache.dim, sizeof(float));
            }
    }
}

// A copy of the span as float32 with room for whole vectors, for shapes that vectors do not fit.
template <class T>
void copy(const Part& part, int64_t number, Span<float>& span) {
    const Cache& cache = part.job.cache;
    int64_t width = part.width();
    Scratch& scratch = Scratch::mine();
    float *keys = room(scratch.keys, width * SPAN), *values = room(scratch.values, width * SPAN);
    if (scratch.pointers.size() < size_t(width / LANES)) scratch.pointers.resize(size_t(width / LANES));
    const float** pointers = reinterpret_cast<const float**>(scratch.pointers.data());
    span.values = pointers, span.key_stride = SPAN, span.value_stride = width, span.run = SPAN;
    for (int64_t v = 0; v < SPAN / LANES; v++) span.keys[v] = keys + v * LANES;
    for (int64_t v = 0; v < width / LANES; v++) pointers[v] = values + v * LANES;
    std::fill_n(keys, width * SPAN, 0.0f);
    std::fill_n(values, width * SPAN, 0.0f);
    for (int64_t place = span.all.begin; place < span.all.end; place++) {
        int64_t at = number * SPAN + place, block = part.job.rows.block_at(part.segment(), at), offset = at % cache.tokens;
        char *key = cache.key_tile(block, part.kv_head), *value = cache.value_tile(block, part.kv_head) + size_t(offset) * cache.row();
        const T *k = reinterpret_cast<const T*>(key) + offset, *v = reinterpret_cast<const T*>(value);
        for (int64_t d = 0; d < cache.dim; d++) {
            keys[d * SPAN + place] = widen_one(k[d * cache.tokens]);
            values[place * width + d] = widen_one(v[d]);
        }
        if (cache.stored == Stored::I8) {
            std::memcpy(span.key_scales + place, cache.key_scale(key, offset), sizeof(float));
            std::memcpy(span.value_scales + place, value + cache.dim, sizeof(float));
        }
    }
}

}  // namespace spans
