#include "linear.hpp"

#include "bf16_inputs.hpp"
#include "dense.hpp"
#include "expanded.hpp"
#include "grouped.hpp"

namespace {

constexpr bool is_dense(Kind kind) { return kind == Kind::F32 || kind == Kind::BF16 || kind == Kind::F16; }
int64_t panel_width(Kind kind) { return is_dense(kind) ? dense::WIDTH : grouped::WIDTH; }
int64_t panel_count(int64_t outs, Kind kind) { return (outs + panel_width(kind) - 1) / panel_width(kind); }

size_t panel_bytes(int64_t ins, Kind kind) {
    return is_dense(kind) ? dense::panel_bytes(ins, kind) : size_t(ins / grouped::GROUP * grouped::group_bytes(kind));
}

}  // namespace

size_t packed_bytes(int64_t outs, int64_t ins, Kind kind) { return size_t(panel_count(outs, kind)) * panel_bytes(ins, kind); }

void pack(const void* source, int64_t outs, int64_t ins, Kind kind, void* packed) {
    std::memset(packed, 0, packed_bytes(outs, ins, kind));
    if (is_dense(kind))
        dense::pack(source, outs, ins, kind, packed);
    else
        grouped::pack(static_cast<const uint8_t*>(source), outs, ins, kind, packed);
}

void embed_row(const Matrix& w, int64_t token, float* out) {
    is_dense(w.kind) ? dense::embed_row(w, token, out) : grouped::embed_row(w, token, out);
}

namespace {

// The products with parts of one kind and input, whose first output is `out`.
template <Kind KIND, Input INPUT>
void products(Pool& pool, const Matrix* parts, int64_t count, const float* x, int64_t rows, float* out, int64_t pitch) {
    // Kept between calls of one thread; workers only read them.
    static thread_local grouped::Activations in_groups;
    static thread_local bf16::Activations in_pairs;
    const grouped::Activations& groups = in_groups;
    const bf16::Activations& pairs = in_pairs;
    int64_t ins = parts->ins;
    if constexpr (INPUT == Input::INT8) in_groups.round<KIND>(pool, x, rows, ins);
    if constexpr (INPUT == Input::BF16) in_pairs.round(pool, x, rows, ins);

    int64_t panels = 0, bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        panels += panel_count(parts[i].outs, KIND);
        bytes += int64_t(packed_bytes(parts[i].outs, parts[i].ins, KIND));
    }
    // A few pieces per thread: enough to even out a busy core, large enough to stream.
    int64_t pieces = bytes * rows < 32768 ? 1 : std::min<int64_t>(panels, pool.threads() * 4);
    pool.each(int(pieces), [&](int piece) {
        int64_t begin = panels * piece / pieces, end = panels * (piece + 1) / pieces;
        float* to = out;
        for (int64_t i = 0; i < count && end > 0; i++) {
            int64_t own = panel_count(parts[i].outs, KIND), first = std::max<int64_t>(begin, 0), last = std::min(end, own);
            if constexpr (INPUT == Input::INT8)
                grouped::panels<KIND>(parts[i], groups, first, last, to, pitch);
            else if constexpr (INPUT == Input::BF16)
                bf16::panels(parts[i], pairs, first, last, to, pitch);
            else if constexpr (is_dense(KIND))
                dense::panels<dense::Floats<KIND>>(parts[i], x, ins, rows, first, last, to, pitch);
            else
                expanded::panels<KIND>(parts[i], x, rows, first, last, to, pitch);
            begin -= own, end -= own, to += parts[i].outs;
        }
    });
}

}  // namespace

void linear(Pool& pool, const Matrix* parts, int64_t count, const float* x, int64_t rows, float* out) {
    int64_t pitch = 0;
    for (int64_t i = 0; i < count; i++) pitch += parts[i].outs;
    for (int64_t i = 0, same; i < count; i += same) {
        const Matrix& first = parts[i];
        for (same = 1; i + same < count && parts[i + same].kind == first.kind && parts[i + same].input == first.input;) same++;
        auto run = [&](auto products) { products(pool, parts + i, same, x, rows, out, pitch); };
        bool rounded = first.input == Input::INT8;
        switch (first.kind) {
            case Kind::F32: run(products<Kind::F32, Input::F32>); break;
            case Kind::F16: run(products<Kind::F16, Input::F32>); break;
            case Kind::BF16:
                first.input == Input::BF16 ? run(products<Kind::BF16, Input::BF16>) : run(products<Kind::BF16, Input::F32>);
                break;
            case Kind::Q4_0: rounded ? run(products<Kind::Q4_0, Input::INT8>) : run(products<Kind::Q4_0, Input::F32>); break;
            case Kind::Q4_1: rounded ? run(products<Kind::Q4_1, Input::INT8>) : run(products<Kind::Q4_1, Input::F32>); break;
            case Kind::Q8_0: rounded ? run(products<Kind::Q8_0, Input::INT8>) : run(products<Kind::Q8_0, Input::F32>); break;
        }
        for (int64_t j = i; j < i + same; j++) out += parts[j].outs;
    }
}
