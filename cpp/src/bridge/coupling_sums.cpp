// Row and column sums in double precision of a coupling exp(f_i + c z_ij + g_j) whose scores are one matrix: the final
// check of a bridge over dense scores. Scores, exponentials and sums of an entry are made in one loop, for some rows at
// once; only the matrix is read from memory.
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <vector>

#include "bridge/exact_sums.hpp"
#include "engine/tiling.hpp"
#include "qk/bridge_kernels.hpp"
#include "qk/few_rows.hpp"
#include "qk/vector_math.hpp"

namespace qk {
namespace {

using Wide = Pack<double>;
constexpr int width = SimdTraits<double>::width;
constexpr Index step = 2 * width;

// Exponents up to here give finite weights at every instruction-set level.
constexpr double highest = 709.0;

template <class E>
QK_INLINE Wide widened(const E* z) {
    if constexpr (sizeof(E) == sizeof(double))
        return load(z);
    else
        return load_as_doubles(z);
}

// Adds the entries of R rows to `columns`, and their sums to `rows`, for columns [0, n), where n is a multiple of `step`.
// Raises `largest` to the largest exponent.
template <int R, class E>
QK_INLINE void add_entries(const E* z, Index ld, double scale, const double* f, const double* g, Index n,
                           double* rows, double* columns, Wide& largest) {
    Wide sum[R][2] = {}, top = largest;
    for (Index j = 0; j < n; j += step) {
        const Wide shift[2] = {load(g + j), load(g + j + width)};
        Wide down[2] = {load(columns + j), load(columns + j + width)};
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            Wide w[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                w[h] = fma(widened(z + r * ld + j + h * width), broadcast(scale), shift[h]) + broadcast(f[r]);
                top = max(w[h], top);
            }
            weight_exp_each<double, 2>(w);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                sum[r][h] += w[h];
                down[h] += w[h];
            }
        }
        store(columns + j, down[0]);
        store(columns + j + width, down[1]);
    }
    largest = top;
    for (int r = 0; r < R; ++r) rows[r] += reduce_add<double>(sum[r][0] + sum[r][1]);
}

// A share of the rows, with column sums of its own.
template <class E>
class Share {
public:
    Share(const MatrixView<E>& z, Index n_cols, double scale, const double* g, const Run& run, int worker)
        : z_(z), n_cols_(n_cols), scale_(scale) {
        const Index padded = round_up(n_cols, step);
        shifts_.reserve(padded);
        pending_.reserve(padded);
        in_pieces(run, worker, padded, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) {
                shifts_[j] = j < n_cols ? g[j] : -infinity<double>();  // what pads a row adds nothing
                pending_[j] = 0;
            }
        });
    }

    // Rows [first, first + n), n up to tuning::checked_rows; their sums go to rows[0], ..., and to `columns`.
    void add(Index first, Index n, const double* f, double* rows, ExactSums& columns, const Run& run,
             int worker) {
        for (Index i = 0, some = 0; i < n; i += some) {
            some = std::min<Index>(4, n - i);
            with_few_rows(some, [&](auto count) {
                this->template add_rows<count()>(first + i, f + i, rows + i, run, worker);
            });
        }
        columns.add(pending_.data(), run, worker);
        in_pieces(run, worker, n_cols_, [&](Index from, Index to) {
            std::fill(pending_.data() + from, pending_.data() + to, 0.0);
        });
    }

    bool in_range() const { return reduce_max<double>(largest_) <= highest; }

private:
    template <int R>
    void add_rows(Index first, const double* f, double* rows, const Run& run, int worker) {
        const Index ld = z_.row_stride, whole = n_cols_ / step * step;
        const E* z = z_.data + first * ld;
        std::fill(rows, rows + R, 0.0);
        for (Index j = 0; j < whole; j += tuning::checked_columns) {
            if (j > 0 && j % tuning::poll_entries == 0 && should_stop(run, worker)) return;
            add_entries<R>(z + j, ld, scale_, f, shifts_.data() + j,
                           std::min(tuning::checked_columns, whole - j), rows, pending_.data() + j, largest_);
        }
        if (whole == n_cols_) return;
        E last[R * step] = {};
        for (int r = 0; r < R; ++r) std::copy(z + r * ld + whole, z + r * ld + n_cols_, last + r * step);
        add_entries<R>(last, step, scale_, f, shifts_.data() + whole, step, rows, pending_.data() + whole,
                       largest_);
    }

    MatrixView<E> z_;
    Index n_cols_;
    double scale_;
    Buffer<double> shifts_, pending_;
    Wide largest_ = broadcast(-infinity<double>());
};

}  // namespace

template <class E>
Status coupling_sums(const MatrixView<E>& z, Index n, Index m, double scale, const double* f, const double* g,
                     double* rows, double* columns, const Run& run) {
    if (z.col_stride != 1) {
        assert(z.row_stride == 1);
        return coupling_sums<E>({z.data, z.col_stride, 1}, m, n, scale, g, f, columns, rows, run);
    }
    const Index height = tuning::checked_rows, n_blocks = (n + height - 1) / height;
    const double work = static_cast<double>(n) * static_cast<double>(m) * tuning::entry_operations / width;
    const Run scaled = scaled_run(run, work);
    // Columns are added part by part, in their order, so the result is the same for the same number of threads.
    const Index n_parts = std::min<Index>(scaled.n_threads, n_blocks);
    std::vector<ExactSums> parts(static_cast<std::size_t>(n_parts));
    std::atomic<bool> fine{true};
    const auto finite = [&](const double* sums, Index from, Index to) {
        if (!std::all_of(sums + from, sums + to, [](double x) { return std::isfinite(x); })) fine = false;
    };
    const auto one = [&](Index part, int worker) {
        Share<E> share(z, m, scale, g, scaled, worker);
        ExactSums& sums = parts[static_cast<std::size_t>(part)];
        sums.start(m, scaled, worker);
        for (Index b = part * n_blocks / n_parts; b < (part + 1) * n_blocks / n_parts; ++b) {
            if (should_stop(scaled, worker)) return;
            const Index first = b * height, end = std::min(first + height, n);
            share.add(first, end - first, f + first, rows + first, sums, scaled, worker);
            finite(rows, first, end);
        }
        if (!share.in_range()) fine = false;
    };
    if (n_parts == 1)
        one(0, 0);
    else
        parallel_for(scaled, n_parts, one);
    if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    ExactSums& total = parts.front();
    for (Index part = 1; part < n_parts; ++part)
        total.add(parts[static_cast<std::size_t>(part)].sums(), run, 0);
    const bool done = in_pieces(run, 0, m, [&](Index from, Index to) {
        std::copy(total.sums() + from, total.sums() + to, columns + from);
        finite(columns, from, to);
    });
    return !done ? Status::interrupted : fine ? Status::ok : Status::overflow;
}

Deviation deviation(const double* got, const double* wanted, Index n, const Run& run) {
    Deviation found;
    in_pieces(run, 0, n, [&](Index from, Index to) {
        Wide sums[3] = {}, worst = {};
        for (Index j = from; j < to; j += width) {
            Wide a, b;
            if (j + width <= to) {
                a = load(got + j);
                b = load(wanted + j);
            } else {
                double last[2][width] = {};
                std::copy(got + j, got + to, last[0]);
                std::copy(wanted + j, wanted + to, last[1]);
                a = load(last[0]);
                b = load(last[1]);
            }
            const Wide off = max(a - b, b - a);
            sums[0] += a;
            sums[1] += b;
            sums[2] += off;
            worst = max(select(b > 0, off / b, Wide{}), worst);
        }
        found.got += reduce_add<double>(sums[0]);
        found.wanted += reduce_add<double>(sums[1]);
        found.off += reduce_add<double>(sums[2]);
        found.worst = std::max(found.worst, reduce_max<double>(worst));
    });
    return found;
}

template Status coupling_sums(const MatrixView<float>&, Index, Index, double, const double*, const double*,
                              double*, double*, const Run&);
template Status coupling_sums(const MatrixView<double>&, Index, Index, double, const double*, const double*,
                              double*, double*, const Run&);

}  // namespace qk
