#include "linear.hpp"

#include "dense.hpp"
#include "grouped.hpp"

namespace {

bool is_dense(Kind kind) { return kind == Kind::F32 || kind == Kind::BF16 || kind == Kind::F16; }
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

void linear(Pool& pool, const Matrix& w, const float* x, int64_t rows, float* out, int64_t pitch) {
    // Kept between calls of one thread; workers only read it.
    static thread_local grouped::Activations activations;
    const grouped::Activations& rounded = activations;
    if (!is_dense(w.kind)) {
        activations.resize(rows, w.ins);
        grouped::Activations& to = activations;
        int64_t groups = w.ins / grouped::GROUP;
        auto row = [&](int r) {
            for (int64_t g = r * groups; g < (r + 1) * groups; g++) to.round(x, g);
        };
        if (rows >= 8)
            pool.each(int(rows), row);
        else
            for (int r = 0; r < rows; r++) row(r);
    }

    // A few pieces per thread: enough to even out a busy core, large enough to stream.
    int64_t count = panel_count(w.outs, w.kind);
    int64_t work = int64_t(packed_bytes(w.outs, w.ins, w.kind)) * rows;
    int64_t pieces = work < 32768 ? 1 : std::min<int64_t>(count, pool.threads() * 4);
    pool.each(int(pieces), [&](int piece) {
        int64_t begin = count * piece / pieces, end = count * (piece + 1) / pieces;
        switch (w.kind) {
            case Kind::F32: return dense::panels<Kind::F32>(w, x, rows, begin, end, out, pitch);
            case Kind::BF16: return dense::panels<Kind::BF16>(w, x, rows, begin, end, out, pitch);
            case Kind::F16: return dense::panels<Kind::F16>(w, x, rows, begin, end, out, pitch);
            case Kind::Q4_0: return grouped::panels<Kind::Q4_0>(w, rounded, rows, begin, end, out, pitch);
            case Kind::Q4_1: return grouped::panels<Kind::Q4_1>(w, rounded, rows, begin, end, out, pitch);
            case Kind::Q8_0: return grouped::panels<Kind::Q8_0>(w, rounded, rows, begin, end, out, pitch);
        }
    });
}
