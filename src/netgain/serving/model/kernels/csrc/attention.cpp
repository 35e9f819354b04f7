#include "attention.hpp"

#include <algorithm>
#include <vector>

#include "simd.hpp"

namespace {

// Keys are read in spans aligned to absolute position. A row's result is made of one partial result per span (maximum,
// sum, weighted values), added in order, so it depends on the row's position alone: not on the rows beside it, and not
// on how spans are shared among threads.
constexpr int SPAN = 256;
constexpr int SLICE = 32;  // keys or values widened to float32 at a time

int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

struct Scratch {
    std::vector<float> queries, scores, slice, mixed, largest, total;
};

Scratch& scratch() {
    static thread_local Scratch one;
    return one;
}

float* room(std::vector<float>& v, size_t size) {
    if (v.size() < size) v.resize(size);
    return v.data();
}

struct Job {
    const Rows& rows;
    const Cache& cache;
    const float* q;
    int64_t heads, group, width;  // width: dim rounded up to whole vectors
    float* out;

    int64_t spans(int64_t row) const { return rows.positions[row] / SPAN + 1; }
};

// Keys (or values) first..first+count of a segment for one kv head, as float32 rows of `width` with zeros at the end.
void widen(const Job& job, const void* base, int64_t segment, int64_t kv_head, int64_t first, int64_t count, float* to) {
    int64_t dim = job.cache.dim, stride = job.cache.kv_heads * dim, tokens = job.rows.block_tokens;
    const int32_t* table = job.rows.tables + segment * job.rows.table_blocks;
    for (int64_t j = first; j < first + count; j++, to += job.width) {
        int64_t at = (table[j / tokens] * tokens + j % tokens) * stride + kv_head * dim;
        int64_t d = 0;
        if (job.cache.bf16) {
            const uint16_t* from = static_cast<const uint16_t*>(base) + at;
            for (; d + LANES <= dim; d += LANES) store(to + d, widen_bf16(load_as<u16v>(from + d)));
            for (; d < dim; d++) to[d] = widen_bf16(from[d]);
        } else {
            std::memcpy(to, static_cast<const float*>(base) + at, size_t(dim) * 4);
            d = dim;
        }
        for (; d < job.width; d++) to[d] = 0.0f;
    }
}

inline float dot(const float* a, const float* b, int64_t width) {
    f32v total{};
    for (int64_t d = 0; d < width; d += LANES) total = fma(load(a + d), load(b + d), total);
    return sum(total);
}

// mixed += sum over keys of weights * values, V vectors at a time.
template <int V>
inline void mix(const float* weights, const float* values, int64_t count, int64_t width, float* mixed) {
    f32v total[V];
    for (int v = 0; v < V; v++) total[v] = load(mixed + v * LANES);
    for (int64_t j = 0; j < count; j++) {
        f32v w = splat(weights[j]);
        for (int v = 0; v < V; v++) total[v] = fma(w, load(values + j * width + v * LANES), total[v]);
    }
    for (int v = 0; v < V; v++) store(mixed + v * LANES, total[v]);
}

// Turns `valid` scores into exp(score - maximum), zero up to SPAN; returns their sum.
inline float weigh(float* scores, int64_t valid, float* largest_out) {
    for (int64_t j = valid; j < SPAN; j++) scores[j] = -INFINITY;
    f32v most = load(scores);
    for (int64_t j = LANES; j < SPAN; j += LANES) most = max(load(scores + j), most);
    float top = largest(most);
    f32v total{};
    for (int64_t j = 0; j < valid; j += LANES) {
        f32v w = exp(load(scores + j) - top);
        store(scores + j, w);
        total = total + w;
    }
    *largest_out = top;
    return sum(total);
}

// The partial results of `count` rows from `first` (one segment) for one kv head and one span. Row r's group of heads
// lies at index r * group of `largest`, `total` and (times width) `mixed`; rows before the span are left out.
void attend_span(const Job& job, int64_t first, int64_t count, int64_t kv_head, int64_t span, const float* queries,
                 float* largest, float* total, float* mixed) {
    Scratch& s = scratch();
    float* scores = room(s.scores, size_t(count * job.group * SPAN));
    float* slice = room(s.slice, size_t(SLICE * job.width));
    int64_t begin = span * SPAN, segment = job.rows.segments[first];
    auto valid = [&](int64_t r) {
        return std::clamp<int64_t>(job.rows.positions[first + r] + 1 - begin, 0, SPAN);
    };
    int64_t longest = 0;
    for (int64_t r = 0; r < count; r++) longest = std::max(longest, valid(r));

    for (int64_t at = 0; at < longest; at += SLICE) {
        int64_t keys = std::min<int64_t>(SLICE, longest - at);
        widen(job, job.cache.keys, segment, kv_head, begin + at, keys, slice);
        for (int64_t r = 0; r < count; r++) {
            int64_t seen = std::clamp<int64_t>(valid(r) - at, 0, keys);
            for (int64_t h = r * job.group; h < (r + 1) * job.group; h++)
                for (int64_t j = 0; j < seen; j++)
                    scores[h * SPAN + at + j] = dot(queries + h * job.width, slice + j * job.width, job.width);
        }
    }
    for (int64_t h = 0; h < count * job.group; h++) {
        if (!valid(h / job.group)) continue;
        total[h] = weigh(scores + h * SPAN, valid(h / job.group), largest + h);
        std::fill_n(mixed + h * job.width, job.width, 0.0f);
    }
    for (int64_t at = 0; at < longest; at += SLICE) {
        int64_t keys = std::min<int64_t>(SLICE, longest - at);
        widen(job, job.cache.values, segment, kv_head, begin + at, keys, slice);
        for (int64_t h = 0; h < count * job.group; h++) {
            int64_t seen = std::clamp<int64_t>(valid(h / job.group) - at, 0, keys), d = 0;
            const float* weights = scores + h * SPAN + at;
            float* to = mixed + h * job.width;
            for (; d + 8 * LANES <= job.width; d += 8 * LANES) mix<8>(weights, slice + d, seen, job.width, to + d);
            for (; d + 4 * LANES <= job.width; d += 4 * LANES) mix<4>(weights, slice + d, seen, job.width, to + d);
            for (; d < job.width; d += LANES) mix<1>(weights, slice + d, seen, job.width, to + d);
        }
    }
}

// Adds up the partial results of one row and head, `stride` heads apart per span, and writes the row's output.
void combine(const Job& job, int64_t row, int64_t head, const float* largest, const float* total, const float* mixed,
             int64_t stride) {
    int64_t spans = job.spans(row);
    float top = largest[0];
    for (int64_t t = 1; t < spans; t++) top = std::max(top, largest[t * stride]);
    float sum = 0.0f;
    float* out = room(scratch().mixed, size_t(job.width));
    std::fill_n(out, job.width, 0.0f);
    for (int64_t t = 0; t < spans; t++) {
        float factor = exp(splat(largest[t * stride] - top))[0];
        sum += factor * total[t * stride];
        const float* from = mixed + t * stride * job.width;
        for (int64_t d = 0; d < job.width; d += LANES) store(out + d, fma(splat(factor), load(from + d), load(out + d)));
    }
    float* to = job.out + (row * job.heads + head) * job.cache.dim;
    for (int64_t d = 0; d < job.cache.dim; d++) to[d] = out[d] / sum;
}

// Queries of `count` rows for one kv head, scaled and padded.
void take_queries(const Job& job, int64_t first, int64_t count, int64_t kv_head, float* to) {
    int64_t dim = job.cache.dim;
    float scale = 1.0f / std::sqrt(float(dim));
    for (int64_t r = 0; r < count; r++)
        for (int64_t g = 0; g < job.group; g++, to += job.width) {
            const float* from = job.q + ((first + r) * job.heads + kv_head * job.group + g) * dim;
            for (int64_t d = 0; d < dim; d++) to[d] = from[d] * scale;
            for (int64_t d = dim; d < job.width; d++) to[d] = 0.0f;
        }
}

}  // namespace

int64_t plan_tiles(const Rows& rows, int64_t segments, int32_t* tiles, int32_t* last_block) {
    int64_t count = 0;
    *last_block = -1;
    for (int64_t r = 0; r < rows.rows; r++) {
        int64_t segment = rows.segments[r], blocks = rows.positions[r] / rows.block_tokens + 1;
        if (segment < 0 || segment >= segments || rows.positions[r] < 0 || blocks > rows.table_blocks) return -1 - r;
        bool extends = count && rows.segments[r - 1] == segment && tiles[2 * count - 1] < TILE_ROWS;
        if (extends) {
            tiles[2 * count - 1]++;
        } else {
            tiles[2 * count] = int32_t(r);
            tiles[2 * count + 1] = 1;
            count++;
        }
        // Rows of a segment usually come in order: only the blocks that its previous row did not need are looked at.
        int64_t known = r && rows.segments[r - 1] == segment ? rows.positions[r - 1] / rows.block_tokens + 1 : 0;
        for (int64_t b = known; b < blocks; b++) {
            int32_t block = rows.tables[segment * rows.table_blocks + b];
            if (block < 0) return -1 - r;
            *last_block = std::max(*last_block, block);
        }
    }
    return count;
}

void store_kv(Pool& pool, const Rows& rows, const Cache& cache, const float* keys, const float* values) {
    int64_t size = cache.kv_heads * cache.dim;
    int64_t pieces = rows.rows * size < 16384 ? 1 : std::min<int64_t>(rows.rows, pool.threads() * 4);
    pool.each(int(pieces), [&](int piece) {
        for (int64_t r = rows.rows * piece / pieces; r < rows.rows * (piece + 1) / pieces; r++) {
            int64_t place = rows.positions[r], tokens = rows.block_tokens;
            int64_t block = rows.tables[rows.segments[r] * rows.table_blocks + place / tokens];
            int64_t at = (block * tokens + place % tokens) * size;
            if (cache.bf16) {
                uint16_t *k = static_cast<uint16_t*>(cache.keys) + at, *v = static_cast<uint16_t*>(cache.values) + at;
                for (int64_t i = 0; i < size; i++) k[i] = narrow_bf16(keys[r * size + i]);
                for (int64_t i = 0; i < size; i++) v[i] = narrow_bf16(values[r * size + i]);
            } else {
                std::memcpy(static_cast<float*>(cache.keys) + at, keys + r * size, size_t(size) * 4);
                std::memcpy(static_cast<float*>(cache.values) + at, values + r * size, size_t(size) * 4);
            }
        }
    });
}

void attend(Pool& pool, const Rows& rows, const Cache& cache, const float* q, int64_t heads, float* out) {
    Job job{rows, cache, q, heads, heads / cache.kv_heads, padded(cache.dim), out};
    int64_t items = rows.tile_count * cache.kv_heads, most_spans = 1;
    for (int64_t r = 0; r < rows.rows; r++) most_spans = std::max(most_spans, job.spans(r));

    if (most_spans == 1 || items >= pool.threads() * 8) {
        // Enough tiles to share out: each one goes through its spans and keeps its partial results to itself.
        pool.each(int(items), [&](int item) {
            int64_t first = rows.tiles[item / cache.kv_heads * 2], count = rows.tiles[item / cache.kv_heads * 2 + 1];
            int64_t kv_head = item % cache.kv_heads, spans = 1, stride = count * job.group;
            for (int64_t r = first; r < first + count; r++) spans = std::max(spans, job.spans(r));
            Scratch& s = scratch();
            float* queries = room(s.queries, size_t(stride * job.width));
            take_queries(job, first, count, kv_head, queries);
            std::vector<float> partial(size_t(spans * stride * (job.width + 2)));
            float *largest = partial.data(), *total = largest + spans * stride, *mixed = total + spans * stride;
            for (int64_t t = 0; t < spans; t++)
                attend_span(job, first, count, kv_head, t, queries, largest + t * stride, total + t * stride,
                            mixed + t * stride * job.width);
            for (int64_t h = 0; h < stride; h++)
                combine(job, first + h / job.group, kv_head * job.group + h % job.group, largest + h, total + h,
                        mixed + h * job.width, stride);
        });
        return;
    }

    // Few rows with a long past: spans are shared out, too, and their partial results added up afterwards.
    int64_t stride = rows.rows * heads;
    std::vector<float> partial(size_t(most_spans * stride * (job.width + 2)));
    float *largest = partial.data(), *total = largest + most_spans * stride, *mixed = total + most_spans * stride;
    pool.each(int(items * most_spans), [&](int item) {
        int64_t tile = item / most_spans / cache.kv_heads, kv_head = item / most_spans % cache.kv_heads;
        int64_t span = item % most_spans, first = rows.tiles[tile * 2], count = rows.tiles[tile * 2 + 1];
        Scratch& s = scratch();
        float* queries = room(s.queries, size_t(count * job.group * job.width));
        take_queries(job, first, count, kv_head, queries);
        int64_t at = span * stride + (first * cache.kv_heads + kv_head * count) * job.group;
        attend_span(job, first, count, kv_head, span, queries, largest + at, total + at, mixed + at * job.width);
    });
    pool.each(int(rows.tile_count), [&](int tile) {
        int64_t first = rows.tiles[tile * 2], count = rows.tiles[tile * 2 + 1];
        for (int64_t r = 0; r < count; r++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t kv_head = h / job.group;
                int64_t at = (first * cache.kv_heads + kv_head * count + r) * job.group + h % job.group;
                combine(job, first + r, h, largest + at, total + at, mixed + at * job.width, stride);
            }
    });
}
