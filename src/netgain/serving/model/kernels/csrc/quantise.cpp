// The steps of q4_1 in quantise.py with the same bits: a group in every lane, and each step one rounding or an exact sum.
#include "quantise.hpp"

#include <algorithm>
#include <iterator>

#include "simd.hpp"

namespace {

constexpr int GROUP = 32, BYTES = 20, REFINEMENTS = 2;
constexpr double STARTS[][2] = {{0.0, 0.0}, {-0.035, 0.0}, {0.0, -0.035}, {0.035, 0.0}, {0.0, 0.035}};
constexpr float NOTHING = 1e-30f, FINE = 1024.0f;

f32v snapped(f32v x) { return round_even(min(max(x, splat(0.0f)), splat(15.0f))); }

// units ~ scale * quants + minimum; `explained` is how much of the spread of the units that takes away.
struct Fit {
    f32v scale, minimum, explained;
};

// The line over the units snapped as (unit - offset) * factor, or as unit * factor - offset.
template <bool OFFSET_FIRST>
Fit fit(const f32v (&units)[GROUP], f32v seen, f32v factor, f32v offset) {
    f32v total{}, squares{}, products{};
    for (const f32v& unit : units) {
        f32v quant = snapped(OFFSET_FIRST ? (unit - offset) * factor : unit * factor - offset);
        total += quant, squares += quant * quant, products += quant * unit;
    }
    f32v spread = squares - total * total / float(GROUP), shared = products - total * seen / float(GROUP);
    f32v slope = shared / spread;
    f32v scale = slope > 0.0f ? slope : splat(1.0f);  // no number where all quants are equal
    return {scale, (seen - scale * total) / float(GROUP), scale * shared};
}

// A block in every lane; false where a scale or minimum is no finite float16.
bool encode(const float (&x)[GROUP][LANES], uint16_t (&scales)[LANES], uint16_t (&minimums)[LANES], int32_t (&bytes)[GROUP / 2][LANES]) {
    f32v least = load(x[0]), most = least;
    for (auto& row : x) least = min(load(row), least), most = max(load(row), most);
    f32v span = most - least, units[GROUP], seen{};
    f32v factor = span > NOTHING ? 1.0f / span * (15.0f * FINE) : f32v{};
    for (int i = 0; i < GROUP; i++) {
        units[i] = round_even((load(x[i]) - least) * factor) * (1.0f / FINE);
        seen += units[i];
    }
    auto start = [&](const double (&drawn)[2]) {
        double stretch = 1.0 / (1.0 - drawn[0] - drawn[1]);
        return fit<false>(units, seen, splat(float(stretch)), splat(float(15.0 * drawn[0] * stretch)));
    };
    Fit best = start(STARTS[0]);
    for (size_t s = 1; s < std::size(STARTS); s++) {
        Fit found = start(STARTS[s]);
        auto better = found.explained > best.explained;
        best.scale = better ? found.scale : best.scale;
        best.minimum = better ? found.minimum : best.minimum;
        best.explained = better ? found.explained : best.explained;
    }
    for (int i = 0; i < REFINEMENTS; i++) best = fit<true>(units, seen, 1.0f / best.scale, best.minimum);
    f32v unit = span / 15.0f, scale = best.scale * unit, minimum = best.minimum * unit + least;
    bool finite = true;
    for (int l = 0; l < LANES; l++) {
        scales[l] = narrow_half(scale[l]), minimums[l] = narrow_half(minimum[l]);
        finite &= (scales[l] & 0x7c00) != 0x7c00 && (minimums[l] & 0x7c00) != 0x7c00;
    }
    f32v wide = widen_halves(scales), inverse = wide > 0.0f ? 1.0f / wide : f32v{};
    minimum = widen_halves(minimums);
    auto quant = [&](int i) { return snapped((load(x[i]) - minimum) * inverse); };
    for (int i = 0; i < GROUP / 2; i++) {
        i32v both = __builtin_convertvector(quant(i) + quant(i + GROUP / 2) * 16.0f, i32v);
        std::memcpy(bytes[i], &both, sizeof both);
    }
    return finite;
}

}  // namespace

int64_t quantise_q4_1(Pool& pool, const float* x, int64_t groups, uint8_t* out) {
    int64_t steps = (groups + LANES - 1) / LANES;
    int pieces = int(std::min<int64_t>(steps, pool.threads() * 4));
    std::atomic<int64_t> bad{-1};
    pool.each(pieces, [&](int piece) {
        float across[GROUP][LANES] = {};
        uint16_t scales[LANES], minimums[LANES];
        int32_t bytes[GROUP / 2][LANES];
        for (int64_t step = steps * piece / pieces; step < steps * (piece + 1) / pieces; step++) {
            int64_t first = step * LANES, count = std::min<int64_t>(LANES, groups - first);
            bool finite = true;
            for (int64_t l = 0; l < count; l++)
                for (int i = 0; i < GROUP; i++) {
                    float value = x[(first + l) * GROUP + i];
                    across[i][l] = value;
                    finite &= value - value == 0.0f;
                }
            if (!encode(across, scales, minimums, bytes) || !finite) bad = first;
            for (int64_t l = 0; l < count; l++) {
                uint8_t* block = out + (first + l) * BYTES;
                std::memcpy(block, &scales[l], 2);
                std::memcpy(block + 2, &minimums[l], 2);
                for (int i = 0; i < GROUP / 2; i++) block[4 + i] = uint8_t(bytes[i][l]);
            }
        }
    });
    return bad;
}
