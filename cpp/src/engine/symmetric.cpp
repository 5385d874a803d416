#include "qk/symmetric.hpp"

#include <algorithm>

#include "engine/flush_subnormals.hpp"
#include "engine/tiling.hpp"
#include "qk/simd.hpp"

namespace qk {
namespace {

constexpr Index tile = symmetric_tile;
constexpr Index tile_size = tile * tile;

struct TileAt {
    Index row, col;  // in tiles; row <= col
};

std::vector<TileAt> upper_tiles(Index n) {
    const Index side = (n + tile - 1) / tile;
    std::vector<TileAt> out;
    out.reserve(static_cast<std::size_t>(symmetric_tile_count(n)));
    for (Index i = 0; i < side; ++i)
        for (Index j = i; j < side; ++j) out.push_back({i, j});
    return out;
}

// Multiplies K vectors by one tile, two of its rows at a time. `down` gets the tile times x of its columns,
// and, off the diagonal, `across` gets its transpose times x of its rows.
template <class T, int K, bool Mirror>
void through_tile(const T* weights, const T* x_cols, const T* x_rows, Index ld, T* down, T* across) {
    constexpr int width = SimdTraits<T>::width;
    for (Index r = 0; r < tile; r += 2) {
        Pack<T> sums[2][K] = {}, factors[2][K];
        for (int h = 0; h < 2; ++h)
            for (int k = 0; k < K; ++k) factors[h][k] = broadcast(Mirror ? x_rows[k * ld + r + h] : T(0));
        const T* row = weights + r * tile;
        for (Index j = 0; j < tile; j += width) {
            const Pack<T> w0 = load(row + j), w1 = load(row + tile + j);
#pragma GCC unroll 2
            for (int k = 0; k < K; ++k) {
                const Pack<T> x = load(x_cols + k * ld + j);
                sums[0][k] = fma(w0, x, sums[0][k]);
                sums[1][k] = fma(w1, x, sums[1][k]);
                if constexpr (Mirror) {
                    T* to = across + k * ld + j;
                    store(to, fma(w1, factors[1][k], fma(w0, factors[0][k], load(to))));
                }
            }
        }
        for (int h = 0; h < 2; ++h)
            for (int k = 0; k < K; ++k) down[k * ld + r + h] += reduce_add<T>(sums[h][k]);
    }
}

template <class T, int K>
void through(const T* weights, TileAt at, const T* x, Index ld, T* out) {
    const Index i = at.row * tile, j = at.col * tile;
    if (at.row == at.col)
        through_tile<T, K, false>(weights, x + j, x + i, ld, out + i, out + j);
    else
        through_tile<T, K, true>(weights, x + j, x + i, ld, out + i, out + j);
}

}  // namespace

template <class T>
Status pack_symmetric(const Problem<T>& problem, T* tiles, const Run& run) {
    const std::vector<TileAt> where = upper_tiles(problem.n_rows);
    std::vector<DenseTask<T>> tasks;
    tasks.reserve(where.size());
    for (std::size_t t = 0; t < where.size(); ++t) {
        T* out = tiles + static_cast<Index>(t) * tile_size;
        const Index row = where[t].row * tile, col = where[t].col * tile;
        const Problem<T> part = rectangle(problem, row, std::min(tile, problem.n_rows - row), col,
                                          std::min(tile, problem.n_cols - col));
        if (part.n_rows < tile || part.n_cols < tile) std::fill(out, out + tile_size, T(0));
        tasks.push_back({part, out, tile});
    }
    return materialize(tasks, false, Weight::exp, run);
}

template <class T>
Status symmetric_product(Index n, const T* tiles, Index k, const T* x, T* out, const Run& run) {
    // Each part sums into vectors of its own, and the parts are added in their order.
    constexpr Index n_parts = tuning::symmetric_parts;
    const std::vector<TileAt> where = upper_tiles(n);
    const auto n_tiles = static_cast<Index>(where.size());
    const Index ld = round_up(n, tile);
    Buffer<T> padded(ld * k), sums(ld * k * n_parts);
    for (Index v = 0; v < k; ++v) {
        std::copy(x + v * n, x + (v + 1) * n, padded.data() + v * ld);
        std::fill(padded.data() + v * ld + n, padded.data() + (v + 1) * ld, T(0));
    }
    const Run scaled = scaled_run(run, static_cast<double>(n_tiles * tile_size * (k + 1)));
    parallel_for(scaled, n_parts, [&](Index part, int worker) {
        const FlushSubnormals flush;
        T* mine = sums.data() + part * ld * k;
        std::fill(mine, mine + ld * k, T(0));
        for (Index t = n_tiles * part / n_parts; t < n_tiles * (part + 1) / n_parts; ++t) {
            if (should_stop(run, worker)) return;
            const T* weights = tiles + t * tile_size;
            // The tile stays in the cache from one pair of vectors to the next.
            for (Index v = 0; v < k; v += 2) {
                const auto visit = v + 1 < k ? &through<T, 2> : &through<T, 1>;
                visit(weights, where[static_cast<std::size_t>(t)], padded.data() + v * ld, ld, mine + v * ld);
            }
        }
    });
    if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    for (Index v = 0; v < k; ++v)
        for (Index i = 0; i < n; ++i) {
            T sum = T(0);
            for (Index part = 0; part < n_parts; ++part) sum += sums[(part * k + v) * ld + i];
            out[v * n + i] = sum;
        }
    return Status::ok;
}

#define QK_INSTANTIATE(T)                                              \
    template Status pack_symmetric(const Problem<T>&, T*, const Run&); \
    template Status symmetric_product(Index, const T*, Index, const T*, T*, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
