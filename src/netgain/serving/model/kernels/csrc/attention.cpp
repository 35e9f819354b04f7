#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "products.hpp"
#include "simd.hpp"
#include "span.hpp"

namespace {

using namespace spans;

constexpr int64_t QUERIES = 48;  // at once: their scores of a span stay in the first-level cache

// Of n queries, each: the largest score, the sum of weights (0: nothing seen yet), the weighted values [n][width].
struct Partial {
    float *top, *sum, *mixed;

    static int64_t size(int64_t n, int64_t width) { return n * (width + 2); }
    static Partial at(float* p, int64_t n) { return {p, p + n, p + 2 * n}; }
};

// The scaled queries of a part, padded to whole vectors.
const float* take_queries(const Part& part) {
    const Attention& job = part.job;
    int64_t dim = job.cache.dim, width = part.width();
    float scale = 1.0f / std::sqrt(float(dim)), *queries = room(Scratch::mine().queries, part.queries() * width), *to = queries;
    for (int64_t r = 0; r < part.count; r++)
        for (int64_t g = 0; g < part.group(); g++, to += width) {
            const float* from = job.queries + ((part.first + r) * job.heads + part.kv_head * part.group() + g) * dim;
            for (int64_t d = 0; d < dim; d++) to[d] = from[d] * scale;
            for (int64_t d = dim; d < width; d++) to[d] = 0.0f;
        }
    return queries;
}

// scores [n][SPAN] of all places; those that a row does not see are replaced in `weigh`.
template <class T>
void score(const Part& part, const float* queries, const Span<T>& span, float* scores) {
    int64_t n = part.queries(), width = part.width(), dim = part.job.cache.dim;
    constexpr int64_t V = 4;  // vectors of keys that stay at hand while all queries pass
    for (int64_t v = span.all.begin / LANES; v * LANES < span.all.end; v += V) {
        int64_t vectors = std::min(V, (span.all.end + LANES - 1) / LANES - v);
        products::Vectors<T> keys{span.keys + v, 0, dim, span.key_stride};
        // Their values are wanted next, and lie where the processor cannot guess.
        for (int64_t place = v * LANES; place < (v + vectors) * LANES; place++)
            for (int64_t d = 0; d < width; d += 64 / int64_t(sizeof(T)))
                __builtin_prefetch(span.values[place / span.run * (width / LANES)] + place % span.run * span.value_stride + d);
        for (int64_t q = 0; q < n; q += products::MOST)
            products::queries(int(std::min<int64_t>(products::MOST, n - q)), queries + q * width, width, keys, vectors, 0, dim, true,
                              scores + q * SPAN + v * LANES, SPAN);
    }
    if (part.job.cache.stored == Stored::I8)
        for (int64_t q = 0; q < n; q++)
            for (int64_t j = span.all.begin / LANES * LANES; j < span.all.end; j += LANES)
                store(scores + q * SPAN + j, load(scores + q * SPAN + j) * load(span.key_scales + j));
}

// Turns the scores of the places seen into exp(score - maximum), next to nothing elsewhere up to a whole vector; returns
// their sum.
float weigh(float* scores, Places seen, float* top) {
    int64_t begin = seen.begin / LANES * LANES;
    for (int64_t j = begin; j < seen.begin; j++) scores[j] = -INFINITY;
    for (int64_t j = seen.end; j % LANES; j++) scores[j] = -INFINITY;
    f32v most = load(scores + begin);
    for (int64_t j = begin + LANES; j < seen.end; j += LANES) most = max(load(scores + j), most);
    *top = largest(most);
    f32v total{};
    for (int64_t j = begin; j < seen.end; j += LANES) {
        f32v w = exp_below_0(load(scores + j) - *top);
        store(scores + j, w);
        total = total + w;
    }
    return sum(total);
}

// mixed = weights * values of the places that each query sees, in order of place.
template <class T>
void mix(const Part& part, const Span<T>& span, const float* weights, float* mixed) {
    int64_t n = part.queries(), width = part.width(), group = part.group();
    products::Vectors<T> values{span.values, width / LANES, span.run, span.value_stride};
    for (int64_t q = 0; q < n; q += products::MOST) {
        int count = int(std::min<int64_t>(products::MOST, n - q));
        auto seen = [&](int i) { return span.seen[(q + i) / group]; };
        auto add = [&](int i, int number, Places of, bool fresh) {
            products::queries(number, weights + (q + i) * SPAN, SPAN, values, width / LANES, of.begin, of.end, fresh,
                              mixed + (q + i) * width, width);
        };
        Places common = seen(0);
        for (int i = 1; i < count; i++) common = {std::max(common.begin, seen(i).begin), std::min(common.end, seen(i).end)};
        if (common.none()) {
            for (int i = 0; i < count; i++) add(i, 1, seen(i), true);
            continue;
        }
        bool before = false;
        for (int i = 0; i < count; i++) before = before || seen(i).begin < common.begin;
        if (before)
            for (int i = 0; i < count; i++) add(i, 1, {seen(i).begin, common.begin}, true);
        add(0, count, common, !before);
        for (int i = 0; i < count; i++)
            if (common.end < seen(i).end) add(i, 1, {common.end, seen(i).end}, false);
    }
}

template <class T>
void partial_of(const Part& part, const float* queries, Span<T>& span, Partial to) {
    int64_t n = part.queries(), group = part.group();
    float* scores = room(Scratch::mine().scores, n * SPAN);
    score(part, queries, span, scores);
    for (int64_t q = 0; q < n; q++) {
        Places seen = span.seen[q / group];
        to.sum[q] = seen.none() ? 0.0f : weigh(scores + q * SPAN, seen, to.top + q);
        if (part.job.cache.stored == Stored::I8)
            for (int64_t j = seen.begin; j < seen.end; j++) scores[q * SPAN + j] *= span.value_scales[j];
    }
    mix(part, span, scores, to.mixed);
}

template <class T>
void attend_stored(const Part& part, const float* queries, int64_t number, const Places* seen, Places all, Partial to) {
    const Cache& cache = part.job.cache;
    if (cache.tokens % LANES == 0 && cache.dim % LANES == 0 && SPAN % cache.tokens == 0) {
        Span<T> span{all, seen};
        point(part, number, span);
        partial_of(part, queries, span, to);
    } else {
        Span<float> span{all, seen};
        copy<T>(part, number, span);
        partial_of(part, queries, span, to);
    }
}

// The partial result of one span.
void attend_span(const Part& part, const float* queries, int64_t number, Partial to) {
    auto& rows = Scratch::mine().seen;
    if (rows.size() < size_t(part.count)) rows.resize(size_t(part.count));
    Places all{SPAN, 0};
    for (int64_t r = 0; r < part.count; r++) {
        rows[size_t(r)] = part.seen(r, number);
        if (!rows[size_t(r)].none()) all = {std::min(all.begin, rows[size_t(r)].begin), std::max(all.end, rows[size_t(r)].end)};
    }
    switch (part.job.cache.stored) {
        case Stored::F32: return attend_stored<float>(part, queries, number, rows.data(), all, to);
        case Stored::BF16: return attend_stored<uint16_t>(part, queries, number, rows.data(), all, to);
        case Stored::I8: return attend_stored<int8_t>(part, queries, number, rows.data(), all, to);
    }
}

// state = state and the partial result that follows it; of the two factors one is exactly 1.
void merge(const Part& part, Partial state, Partial next) {
    int64_t width = part.width();
    for (int64_t q = 0; q < part.queries(); q++) {
        float *to = state.mixed + q * width, *from = next.mixed + q * width;
        if (next.sum[q] == 0.0f) continue;
        if (state.sum[q] == 0.0f) {
            state.top[q] = next.top[q], state.sum[q] = next.sum[q];
            std::memcpy(to, from, size_t(width) * sizeof(float));
            continue;
        }
        float top = std::max(state.top[q], next.top[q]);
        f32v old = exp_below_0(splat(state.top[q] - top)), fresh = exp_below_0(splat(next.top[q] - top));
        state.top[q] = top;
        state.sum[q] = state.sum[q] * old[0] + next.sum[q] * fresh[0];
        for (int64_t d = 0; d < width; d += LANES) store(to + d, fma(fresh, load(from + d), load(to + d) * old));
    }
}

void write(const Part& part, Partial state) {
    const Attention& job = part.job;
    int64_t dim = job.cache.dim, q = 0;
    for (int64_t r = 0; r < part.count; r++)
        for (int64_t g = 0; g < part.group(); g++, q++) {
            float* to = job.out + ((part.first + r) * job.heads + part.kv_head * part.group() + g) * dim;
            for (int64_t d = 0; d < dim; d++) to[d] = state.mixed[q * part.width() + d] / state.sum[q];
        }
}

Partial empty_state(const Part& part) {
    int64_t n = part.queries();
    Partial state = Partial::at(room(Scratch::mine().state, Partial::size(n, part.width())), n);
    std::fill_n(state.sum, n, 0.0f);
    return state;
}

// All spans of a part, one after the other.
void attend_part(const Part& part) {
    const float* queries = take_queries(part);
    Partial state = empty_state(part);
    Partial next = Partial::at(room(Scratch::mine().partial, Partial::size(part.queries(), part.width())), part.queries());
    Places spans = part.spans();
    for (int64_t span = spans.begin; span < spans.end; span++) {
        attend_span(part, queries, span, next);
        merge(part, state, next);
    }
    write(part, state);
}

// A tile and kv head, in parts of at most QUERIES queries (but whole rows).
template <class Visit>
void each_part(const Attention& job, int64_t tile, int64_t kv_head, const Visit& visit) {
    int64_t first = job.rows.tiles[2 * tile], end = first + job.rows.tiles[2 * tile + 1];
    int64_t at_once = std::max<int64_t>(1, QUERIES * job.cache.kv_heads / job.heads);
    for (; first < end; first += at_once) visit(Part{job, first, std::min(at_once, end - first), kv_head});
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

void attend_tiles(const Attention& job, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile++)
        for (int64_t kv_head = 0; kv_head < job.cache.kv_heads; kv_head++) each_part(job, tile, kv_head, attend_part);
}

void attend(Pool& pool, const Attention& job) {
    int64_t kv_heads = job.cache.kv_heads, tiles = job.rows.tile_count, longest = 1;
    for (int64_t tile = 0; tile < tiles; tile++)
        each_part(job, tile, 0, [&](const Part& part) { longest = std::max(longest, part.spans().end - part.spans().begin); });
    if (longest < 2 || pool.threads() == 1 || tiles * kv_heads >= pool.threads() * 8) {
        pool.each(int(tiles * kv_heads), [&](int item) { each_part(job, item / kv_heads, item % kv_heads, attend_part); });
        return;
    }

    // Few rows: spans are shared out, too, so that no thread waits long for another, and their partial results merged afterwards.
    struct Item {
        Part part;
        int64_t span, at;
    };
    static thread_local std::vector<Item> items;
    items.clear();
    int64_t size = 0;
    for (int64_t tile = 0; tile < tiles; tile++)
        for (int64_t head = 0; head < kv_heads; head++)
            each_part(job, tile, head, [&](const Part& part) {
                for (int64_t span = part.spans().begin; span < part.spans().end; span++) {
                    items.push_back({part, span, size});
                    size += Partial::size(part.queries(), part.width());
                }
            });
    float* records = room(Scratch::mine().records, size);
    const Item* all = items.data();
    pool.each(int(items.size()), [&](int i) {
        attend_span(all[i].part, take_queries(all[i].part), all[i].span, Partial::at(records + all[i].at, all[i].part.queries()));
    });
    int64_t count = int64_t(items.size());
    for (int64_t i = 0; i < count;) {
        const Part& part = all[i].part;
        Partial state = empty_state(part);
        for (int64_t end = i + part.spans().end - part.spans().begin; i < end; i++)
            merge(part, state, Partial::at(records + all[i].at, part.queries()));
        write(part, state);
    }
}
