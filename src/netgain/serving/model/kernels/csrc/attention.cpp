#include "attention.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "simd.hpp"

namespace {

// Keys are read in spans aligned to absolute position. A row's result is made of one partial result per span (maximum,
// sum, weighted values), added in order, so it depends on the row's position alone: not on the rows beside it, and not
// on how spans are shared among threads.
constexpr int SPAN = 128;
constexpr int SLICE = 32;  // keys or values widened to float32 at a time

int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

struct Scratch {
    std::vector<float> queries, scores, slice, records, output;
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
    float* out;
    int64_t heads, group, width;  // width: dim rounded up to whole vectors
    int64_t window;               // how many places a row sees, its own among them

    int64_t begin(int64_t row) const { return std::max<int64_t>(rows.positions[row] + 1 - window, 0); }
    int64_t first_span(int64_t row) const { return begin(row) / SPAN; }
    int64_t last_span(int64_t row) const { return rows.positions[row] / SPAN; }

    // A partial result: maximum, sum of weights, and from LANES on the weighted values.
    int64_t record() const { return LANES + width; }
};

// Spans that the rows of a tile see, from `first` up to `end`; records are kept for these alone.
struct Spans {
    int64_t first, end;
    int64_t count() const { return end - first; }
};

Spans spans_of(const Job& job, int64_t row, int64_t count) {
    Spans seen{job.first_span(row), 0};
    for (int64_t r = row; r < row + count; r++) {
        seen.first = std::min(seen.first, job.first_span(r));
        seen.end = std::max(seen.end, job.last_span(r) + 1);
    }
    return seen;
}

// Places of a span that a row sees, counted from the span's begin.
struct Places {
    int64_t begin, end;
};

Places places_of(const Job& job, int64_t row, int64_t span) {
    auto within = [&](int64_t place) { return std::clamp<int64_t>(place - span * SPAN, 0, SPAN); };
    return {within(job.begin(row)), within(job.rows.positions[row] + 1)};
}

// Some kv heads, and with each its `group` of query heads.
struct Heads {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};

// A run of places first..first+count of a segment, in pieces that lie in one block each: visit(index, pieces) gets the
// index of the first element (kv head 0) of `pieces` consecutive rows.
template <class Visit>
inline void each_block(const Job& job, int64_t segment, int64_t first, int64_t count, const Visit& visit) {
    int64_t tokens = job.rows.block_tokens, row = job.cache.kv_heads * job.cache.dim;
    const int32_t* table = job.rows.tables + segment * job.rows.table_blocks;
    int64_t block = first / tokens, offset = first % tokens;
    for (; count > 0; block++, offset = 0) {
        int64_t here = std::min(count, tokens - offset);
        visit((table[block] * tokens + offset) * row, here);
        count -= here;
    }
}

// Keys or values of one kv head, as float32 rows of `width` with zeros at the end.
void widen(const Job& job, const void* base, int64_t segment, int64_t kv_head, int64_t first, int64_t count, float* to) {
    int64_t dim = job.cache.dim, stride = job.cache.kv_heads * dim;
    each_block(job, segment, first, count, [&](int64_t at, int64_t rows) {
        at += kv_head * dim;
        for (int64_t j = 0; j < rows; j++, to += job.width, at += stride) {
            int64_t d = 0;
            if (job.cache.bf16) {
                const uint16_t* from = static_cast<const uint16_t*>(base) + at;
                for (; d + LANES <= dim; d += LANES) store(to + d, widen_bf16(load_as<u16v>(from + d)));
                for (; d < dim; d++) to[d] = widen_bf16(from[d]);
            } else {
                const float* from = static_cast<const float*>(base) + at;
                for (; d + LANES <= dim; d += LANES) store(to + d, load(from + d));
                for (; d < dim; d++) to[d] = from[d];
            }
            for (; d < job.width; d++) to[d] = 0.0f;
        }
    });
}

// Asks for the keys or values of some kv heads ahead of use: blocks lie at random, so the processor cannot guess.
void prefetch(const Job& job, const void* base, int64_t segment, Heads kv, int64_t first, int64_t count) {
    int64_t size = job.cache.bf16 ? 2 : 4, stride = job.cache.kv_heads * job.cache.dim * size;
    int64_t begin = kv.begin * job.cache.dim * size, end = kv.end * job.cache.dim * size;
    each_block(job, segment, first, count, [&](int64_t at, int64_t rows) {
        const char* row = static_cast<const char*>(base) + at * size;
        for (int64_t j = 0; j < rows; j++, row += stride)
            for (int64_t line = begin; line < end; line += 64) __builtin_prefetch(row + line);
    });
}

// Products of a query with LANES keys.
inline f32v dots(const float* query, const float* keys, int64_t width) {
    f32v total[LANES];
    NG_UNROLL for (int j = 0; j < LANES; j++) total[j] = f32v{};
    for (int64_t d = 0; d < width; d += LANES) {
        f32v q = load(query + d);
        NG_UNROLL for (int j = 0; j < LANES; j++) total[j] = fma(q, load(keys + j * width + d), total[j]);
    }
    return sums(total);
}

// mixed += sum over keys of weights * values, V vectors at a time.
template <int V>
inline void mix(const float* weights, const float* values, int64_t count, int64_t width, float* mixed) {
    f32v total[V];
    NG_UNROLL for (int v = 0; v < V; v++) total[v] = load(mixed + v * LANES);
    for (int64_t j = 0; j < count; j++) {
        f32v w = splat(weights[j]);
        NG_UNROLL for (int v = 0; v < V; v++) total[v] = fma(w, load(values + j * width + v * LANES), total[v]);
    }
    NG_UNROLL for (int v = 0; v < V; v++) store(mixed + v * LANES, total[v]);
}

// Turns the scores of the places seen into exp(score - maximum), zero elsewhere in the span; returns their sum.
inline float weigh(float* scores, Places seen, float* largest_out) {
    for (int64_t j = 0; j < seen.begin; j++) scores[j] = -INFINITY;
    for (int64_t j = seen.end; j < SPAN; j++) scores[j] = -INFINITY;
    f32v most = load(scores);
    for (int64_t j = LANES; j < SPAN; j += LANES) most = max(load(scores + j), most);
    float top = largest(most);
    f32v total{};
    for (int64_t j = 0; j < seen.end; j += LANES) {
        f32v w = exp(load(scores + j) - top);
        store(scores + j, w);
        total = total + w;
    }
    *largest_out = top;
    return sum(total);
}

// The partial results of `count` rows from `first` (one segment) for some kv heads and one span. Queries and records are
// ordered by kv head, row, head of the group; records of rows that see nothing of the span are not read.
void attend_span(const Job& job, int64_t first, int64_t count, Heads kv, int64_t span, const float* queries, float* records) {
    Scratch& s = scratch();
    int64_t per_head = count * job.group, width = job.width;
    float* scores = room(s.scores, size_t(kv.count() * per_head * SPAN));
    float* slice = room(s.slice, size_t(SLICE * width));
    int64_t begin = span * SPAN, segment = job.rows.segments[first], earliest = SPAN, longest = 0;
    for (int64_t r = 0; r < count; r++) {
        Places seen = places_of(job, first + r, span);
        if (seen.begin >= seen.end) continue;
        earliest = std::min(earliest, seen.begin / SLICE * SLICE);
        longest = std::max(longest, seen.end);
    }

    // Scores of places that a row does not see are replaced in `weigh`.
    for (int64_t at = earliest; at < longest; at += SLICE) {
        int64_t keys = std::min<int64_t>(SLICE, longest - at);
        prefetch(job, job.cache.keys, segment, kv, begin + at + keys, std::min<int64_t>(SLICE, longest - at - keys));
        prefetch(job, job.cache.values, segment, kv, begin + at, keys);
        for (int64_t k = kv.begin, h = 0; k < kv.end; k++) {
            widen(job, job.cache.keys, segment, k, begin + at, keys, slice);
            for (int64_t end = h + per_head; h < end; h++)
                for (int64_t j = 0; j < keys; j += LANES)
                    store(scores + h * SPAN + at + j, dots(queries + h * width, slice + j * width, width));
        }
    }
    for (int64_t k = kv.begin, h = 0; k < kv.end; k++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t g = 0; g < job.group; g++, h++) {
                float* record = records + h * job.record();
                Places seen = places_of(job, first + r, span);
                if (seen.begin < seen.end) record[1] = weigh(scores + h * SPAN, seen, record);
                std::fill_n(record + LANES, width, 0.0f);
            }
    for (int64_t at = earliest; at < longest; at += SLICE) {
        int64_t keys = std::min<int64_t>(SLICE, longest - at);
        for (int64_t k = kv.begin, h = 0; k < kv.end; k++) {
            widen(job, job.cache.values, segment, k, begin + at, keys, slice);
            for (int64_t r = 0; r < count; r++) {
                Places seen = places_of(job, first + r, span);
                int64_t from = std::clamp<int64_t>(seen.begin - at, 0, keys);
                int64_t number = std::max<int64_t>(std::clamp<int64_t>(seen.end - at, 0, keys) - from, 0);
                for (int64_t g = 0; g < job.group; g++, h++) {
                    const float *weights = scores + h * SPAN + at + from, *values = slice + from * width;
                    float* to = records + h * job.record() + LANES;
                    int64_t d = 0;
                    for (; d + 8 * LANES <= width; d += 8 * LANES) mix<8>(weights, values + d, number, width, to + d);
                    for (; d + 4 * LANES <= width; d += 4 * LANES) mix<4>(weights, values + d, number, width, to + d);
                    for (; d < width; d += LANES) mix<1>(weights, values + d, number, width, to + d);
                }
            }
        }
    }
}

// Adds up the records of one row and head, `stride` floats apart per span from `first_span`, and writes the row's output.
void combine(const Job& job, int64_t row, int64_t head, const float* record, int64_t first_span, int64_t stride) {
    int64_t spans = job.last_span(row) - job.first_span(row) + 1;
    record += (job.first_span(row) - first_span) * stride;
    float top = record[0], sum = 0.0f;
    for (int64_t t = 1; t < spans; t++) top = std::max(top, record[t * stride]);
    float* out = room(scratch().output, size_t(job.width));
    std::fill_n(out, job.width, 0.0f);
    for (int64_t t = 0; t < spans; t++, record += stride) {
        f32v factor = exp(splat(record[0] - top));
        sum += factor[0] * record[1];
        for (int64_t d = 0; d < job.width; d += LANES) store(out + d, fma(factor, load(record + LANES + d), load(out + d)));
    }
    float* to = job.out + (row * job.heads + head) * job.cache.dim;
    for (int64_t d = 0; d < job.cache.dim; d++) to[d] = out[d] / sum;
}

// Combines all records of `count` rows and some kv heads, ordered as in attend_span.
void finish(const Job& job, int64_t first, int64_t count, Heads kv, const float* records, int64_t stride) {
    int64_t first_span = spans_of(job, first, count).first;
    for (int64_t k = kv.begin; k < kv.end; k++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t g = 0; g < job.group; g++, records += job.record())
                combine(job, first + r, k * job.group + g, records, first_span, stride);
}

// Queries of `count` rows for some kv heads, scaled and padded, in the order that attend_span wants.
void take_queries(const Job& job, int64_t first, int64_t count, Heads kv, float* to) {
    int64_t dim = job.cache.dim;
    float scale = 1.0f / std::sqrt(float(dim));
    for (int64_t k = kv.begin; k < kv.end; k++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t g = 0; g < job.group; g++, to += job.width) {
                const float* from = job.q + ((first + r) * job.heads + k * job.group + g) * dim;
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

void store_kv(Pool& pool, const Rows& rows, const Cache& cache, const float* keys, const float* values, int64_t pitch) {
    int64_t size = cache.kv_heads * cache.dim;
    int64_t pieces = rows.rows * size < 16384 ? 1 : std::min<int64_t>(rows.rows, pool.threads() * 4);
    pool.each(int(pieces), [&](int piece) {
        for (int64_t r = rows.rows * piece / pieces; r < rows.rows * (piece + 1) / pieces; r++) {
            int64_t place = rows.positions[r], tokens = rows.block_tokens;
            int64_t block = rows.tables[rows.segments[r] * rows.table_blocks + place / tokens];
            int64_t at = (block * tokens + place % tokens) * size;
            if (cache.bf16) {
                uint16_t *k = static_cast<uint16_t*>(cache.keys) + at, *v = static_cast<uint16_t*>(cache.values) + at;
                for (int64_t i = 0; i < size; i++) k[i] = narrow_bf16(keys[r * pitch + i]);
                for (int64_t i = 0; i < size; i++) v[i] = narrow_bf16(values[r * pitch + i]);
            } else {
                std::memcpy(static_cast<float*>(cache.keys) + at, keys + r * pitch, size_t(size) * 4);
                std::memcpy(static_cast<float*>(cache.values) + at, values + r * pitch, size_t(size) * 4);
            }
        }
    });
}

void attend(Pool& pool, const Rows& rows, const Cache& cache, const float* q, int64_t heads, int64_t window, float* out) {
    Job job{rows, cache, q, out, heads, heads / cache.kv_heads, padded(cache.dim), window ? window : INT64_MAX / 2};
    int64_t spans = 1;
    for (int64_t t = 0; t < rows.tile_count; t++)
        spans = std::max(spans, spans_of(job, rows.tiles[2 * t], rows.tiles[2 * t + 1]).count());
    bool share_spans = spans > 1 && rows.tile_count < pool.threads() * 8;
    int64_t items = rows.tile_count * (share_spans ? spans : 1);
    // All kv heads of a place lie together and are best read together; apart only if threads would else have no work.
    int64_t parts = items < pool.threads() * 2 ? cache.kv_heads : 1, part_heads = cache.kv_heads / parts;

    auto of_tile = [&](int64_t tile) { return std::pair<int64_t, int64_t>(rows.tiles[2 * tile], rows.tiles[2 * tile + 1]); };
    auto part = [&](int64_t i) { return Heads{i * part_heads, (i + 1) * part_heads}; };
    if (!share_spans) {
        // Each piece goes through all spans of its rows and keeps their partial results to itself.
        pool.each(int(items * parts), [&](int item) {
            auto [first, count] = of_tile(item / parts);
            Heads kv = part(item % parts);
            int64_t size = kv.count() * count * job.group;
            Spans seen = spans_of(job, first, count);
            Scratch& s = scratch();
            float* queries = room(s.queries, size_t(size * job.width));
            float* records = room(s.records, size_t(seen.count() * size * job.record()));
            take_queries(job, first, count, kv, queries);
            for (int64_t t = 0; t < seen.count(); t++)
                attend_span(job, first, count, kv, seen.first + t, queries, records + t * size * job.record());
            finish(job, first, count, kv, records, size * job.record());
        });
        return;
    }

    // Few rows with a long past: spans are shared out, too, and their partial results added up afterwards.
    int64_t stride = rows.rows * heads * job.record();
    float* records = room(scratch().records, size_t(spans * stride));
    pool.each(int(items * parts), [&](int item) {
        auto [first, count] = of_tile(item / parts / spans);
        Heads kv = part(item % parts);
        int64_t span = item / parts % spans, before = (first * heads + kv.begin * count * job.group) * job.record();
        Spans seen = spans_of(job, first, count);
        if (span >= seen.count()) return;
        float* queries = room(scratch().queries, size_t(kv.count() * count * job.group * job.width));
        take_queries(job, first, count, kv, queries);
        attend_span(job, first, count, kv, seen.first + span, queries, records + span * stride + before);
    });
    pool.each(int(rows.tile_count), [&](int tile) {
        auto [first, count] = of_tile(tile);
        finish(job, first, count, Heads{0, cache.kv_heads}, records + first * heads * job.record(), stride);
    });
}
