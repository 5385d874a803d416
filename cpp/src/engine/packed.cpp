#include "engine/packed.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace qk {
namespace {

// A run of features of one term, side by side in the packed order.
template <class T>
struct FeatureRun {
    const FeatureTerm<T>& term;
    Index from, count;  // in the term
    T row_factor, col_factor;
};

// The features of a term that a step sums. Distance terms share the scale of the first one, which is applied after the
// sum of differences. Further terms multiply their points by a factor that makes up for their own scale (exactly 1 if
// the scales agree). If the scale has the other sign, their positive directions are summed as negative ones.
template <class Step, class T>
FeatureRun<T> run_of(const Problem<T>& problem, const FeatureTerm<T>& term) {
    if constexpr (Step::kind == FeatureKind::dot) {
        return {term, 0, term.dim, term.scale_cols ? T(1) : term.scale, term.scale_cols ? term.scale : T(1)};
    } else {
        const T ratio = term.scale / problem.distances.front().scale;
        const T factor = Step::point_factor(std::abs(ratio));
        const Index n_positive = term.dim - term.n_negative;
        if ((ratio > 0) == (Step::sign > 0)) return {term, 0, n_positive, factor, factor};
        return {term, n_positive, term.n_negative, factor, factor};
    }
}

// Calls visit(run, number of its step, first feature in the packed order) for each run of features.
template <class T, class Visit>
void for_each_run(const Problem<T>& problem, const Visit& visit) {
    Index at = 0;
    each_step(FeatureSteps{}, [&]<class Step>(std::size_t number) {
        constexpr bool dot = Step::kind == FeatureKind::dot;
        for (const auto& term : dot ? problem.dots : problem.distances) {
            if (!dot && term.kind != Step::kind) continue;
            const FeatureRun<T> run = run_of<Step>(problem, term);
            visit(run, number, at);
            at += run.count;
        }
    });
}

template <class T>
void pack_panel(const Problem<T>& problem, Index panel, Index d, T* out) {
    constexpr Index cols = MicroTile<T>::cols;
    const Index first = panel * cols;
    const Index live = std::min(cols, problem.n_cols - first);
    T* base = out + panel * d * cols;
    for_each_run(problem, [&](const FeatureRun<T>& run, std::size_t, Index at) {
        const FeatureTerm<T>& term = run.term;
        const Index from = run.from, count = run.count;
        const T factor = run.col_factor;
        T* dst = base + at * cols;
        if (live == cols) {  // a full panel: a fixed number of columns at a time, which the compiler unrolls
            const T* src = &term.cols(first, from);
            const Index next = term.cols.row_stride, step = term.cols.col_stride;
            for (Index k = 0; k < count; ++k)
                for (Index j = 0; j < cols; ++j) dst[k * cols + j] = factor * src[j * next + k * step];
            return;
        }
        for (Index j = 0; j < live; ++j)
            for (Index k = 0; k < count; ++k) dst[k * cols + j] = factor * term.cols(first + j, from + k);
        for (Index k = 0; k < count; ++k) std::fill(dst + k * cols + live, dst + (k + 1) * cols, T(0));
    });
}

template <class T>
bool has_stage(const std::vector<Bias<T>>& biases, Stage stage) {
    return std::ranges::any_of(biases, [&](const Bias<T>& bias) { return bias.stage == stage; });
}

// Whether the score without its reference is an entry of a given matrix. It needs no rounding then, so a reference of
// one side can be added like an early bias, with the same result and one addition less.
template <class T>
bool references_are_early(const Problem<T>& problem) {
    return problem.dense.size() == 1 && problem.dense.front().scale == T(1) && problem.dots.empty() &&
           problem.distances.empty() && !has_stage(problem.row_bias, Stage::early) &&
           !has_stage(problem.col_bias, Stage::early) &&
           has_stage(problem.row_bias, Stage::reference) != has_stage(problem.col_bias, Stage::reference);
}

// The array in which the biases of a stage are summed, in packed columns or in a block of rows.
template <class T, class Packed>
Buffer<T>& stage_of(const Bias<T>& bias, bool early_references, Packed& packed) {
    switch (bias.stage) {
        case Stage::early:
            return packed.bias;
        case Stage::reference:
            return early_references ? packed.bias : packed.reference;
        case Stage::late:
            return packed.late;
    }
    __builtin_unreachable();
}

template <class T>
LateSides late_sides_of(const Problem<T>& problem) {
    const bool rows = problem.has_late_rows(), cols = problem.has_late_cols();
    if (!rows && !cols) return LateSides::none;
    if (has_stage(problem.row_bias, Stage::late) || has_stage(problem.col_bias, Stage::late))
        return rows && cols ? LateSides::both : rows ? LateSides::rows : LateSides::cols;
    if (references_are_early(problem)) return LateSides::none;
    return rows ? LateSides::references : LateSides::col_references;
}

// Biases of the columns [first, end), summed by stage; `end` may be past the last column.
template <class T>
void pack_biases(const Problem<T>& problem, Index first, Index end, PackedColumns<T>& packed) {
    const Index live_end = std::min(end, problem.n_cols);
    std::fill(packed.bias.data() + first, packed.bias.data() + live_end, T(0));
    std::fill(packed.bias.data() + live_end, packed.bias.data() + end, -infinity<T>());
    if (packed.has_late()) {
        std::fill(packed.reference.data() + first, packed.reference.data() + end, T(0));
        std::fill(packed.late.data() + first, packed.late.data() + end, T(0));
    }
    const bool early_references = references_are_early(problem);
    for (const auto& term : problem.col_bias) {
        T* sums = stage_of(term, early_references, packed).data();
        for (Index j = first; j < live_end; ++j) sums[j] += term[j];
    }
}

// Packs right-hand sides of the columns [first, end); `end` may be beyond the last
// column, where zeros are written.
template <class T>
void pack_values(MatrixView<T> values, Index n_cols, Index n_values, Index first, Index end,
                 PackedColumns<T>& packed) {
    constexpr Index width = SimdTraits<T>::width;
    const Index n = packed.n_padded;
    const Index live_end = std::min(end, n_cols);
    if (packed.n_packs == 0) {
        for (Index k = 0; k < n_values; ++k) {
            T* dst = packed.values.data() + k * n;
            for (Index j = first; j < live_end; ++j) dst[j] = values(j, k);
            std::fill(dst + live_end, dst + end, T(0));
        }
        return;
    }
    for (Index q = 0; q < packed.n_packs; q += MicroTile<T>::packs) {
        const Index w = width * std::min<Index>(MicroTile<T>::packs, packed.n_packs - q);
        const Index column = q * width;
        const Index live = std::min(w, n_values - column);
        T* dst = packed.values.data() + column * n + first * w;
        for (Index j = first; j < live_end; ++j, dst += w) {
            if (live == MicroTile<T>::cols && values.col_stride == 1) {
                for (Index k = 0; k < w; k += width) store(dst + k, load(&values(j, column + k)));
                continue;
            }
            for (Index k = 0; k < live; ++k) dst[k] = values(j, column + k);
            std::fill(dst + live, dst + w, T(0));
        }
        std::fill(dst, dst + (end - live_end) * w, T(0));
    }
}

// tile += scale * dense
template <class T>
void add_dense(const DenseTerm<T>& term, const RowBlock<T>& block, Index first_col, Index n_cols, T* tile,
               Index ld) {
    const MatrixView<T>& z = term.values;
    if (column_major(z)) {
        // Eight columns at a time, from top to bottom: whole cache lines are read, and written lines are used again.
        constexpr Index strip = 8;
        for (Index j = 0; j < n_cols; j += strip) {
            const Index width = std::min(strip, n_cols - j);
            const T* src = &z(block.first_row, first_col + j);
            for (Index r = 0; r < block.n_rows; ++r)
                for (Index c = 0; c < width; ++c)
                    tile[r * ld + j + c] += term.scale * src[c * z.col_stride + r];
        }
        return;
    }
    for (Index r = 0; r < block.n_rows; ++r) {
        const T* src = &z(block.first_row + r, first_col);
        T* dst = tile + r * ld;
        if (z.col_stride == 1) {
            for (Index j = 0; j < n_cols; ++j) dst[j] += term.scale * src[j];
        } else {
            for (Index j = 0; j < n_cols; ++j) dst[j] += term.scale * src[j * z.col_stride];
        }
    }
}

// The late biases of one row, which are added to finished scores. Columns count from the first one of the tile.
template <class T, LateSides Sides>
class LateBiases {
public:
    LateBiases(const PackedColumns<T>& columns, const RowBlock<T>& block, Index first_col, Index r)
        : reference_(col_references(Sides) ? columns.reference.data() + first_col : nullptr),
          late_(late_cols(Sides) ? columns.late.data() + first_col : nullptr),
          row_reference_(row_references(Sides) ? block.reference[r] : T(0)),
          row_late_(late_rows(Sides) ? block.late[r] : T(0)) {}

    QK_INLINE Pack<T> add(Pack<T> s, Index j) const {
        const Pack<T> reference = col_references(Sides) ? load(reference_ + j) : Pack<T>{};
        const Pack<T> late = late_cols(Sides) ? load(late_ + j) : Pack<T>{};
        return add_late_biases<Sides>(s, row_reference_, reference, row_late_, late);
    }
    QK_INLINE T add_one(T s, Index j) const {
        const T reference = col_references(Sides) ? reference_[j] : T(0);
        const T late = late_cols(Sides) ? late_[j] : T(0);
        return add_late_biases<Sides>(s, row_reference_, reference, row_late_, late);
    }

private:
    const T* reference_;
    const T* late_;
    T row_reference_, row_late_;
};

// Calls work.template operator()<Sides>().
template <class Work>
void with_sides(LateSides sides, const Work& work) {
    switch (sides) {
        case LateSides::none:
            return work.template operator()<LateSides::none>();
        case LateSides::rows:
            return work.template operator()<LateSides::rows>();
        case LateSides::cols:
            return work.template operator()<LateSides::cols>();
        case LateSides::col_references:
            return work.template operator()<LateSides::col_references>();
        case LateSides::references:
            return work.template operator()<LateSides::references>();
        case LateSides::both:
            return work.template operator()<LateSides::both>();
    }
}

// Reads a matrix down its columns, in squares of packs: whole cache lines of the matrix become packs of columns of the
// tile.
template <class T>
class ColumnsDown {
    static constexpr Index width = SimdTraits<T>::width;

public:
    ColumnsDown(const MatrixView<T>& z, const RowBlock<T>& block, Index first_col, Index n_cols)
        : from_(&z(block.first_row, first_col)),
          stride_(z.col_stride),
          n_rows_(block.n_rows),
          n_cols_(n_cols),
          // Packs that start up to here end within the matrix.
          safe_(stride_ > 0 ? (n_cols - 1) * stride_ + n_rows_ - width : -1) {}

    // Prefetches `width` columns. They lie far from each other, so the processor does not predict the next one.
    void fetch(Index j) const {
        constexpr Index line = 64 / static_cast<Index>(sizeof(T));
        for (Index c = j; c < std::min(j + width, n_cols_); ++c)
            for (Index r = 0; r < n_rows_; r += line) __builtin_prefetch(from_ + c * stride_ + r);
    }

    // Pack c gets the rows from r on of column j + c; there may be fewer than `width` such rows.
    QK_INLINE void load(Index r, Index j, Pack<T> (&square)[SimdTraits<T>::width]) const {
        const T* at = from_ + j * stride_ + r;
        if (r + width <= n_rows_ || (j + width - 1) * stride_ + r <= safe_) {
#pragma GCC unroll 16
            for (Index c = 0; c < width; ++c) square[c] = qk::load(at + c * stride_);
            return;
        }
        for (Index c = 0; c < width; ++c) {
            T some[SimdTraits<T>::width] = {};
            std::copy(at + c * stride_, at + c * stride_ + (n_rows_ - r), some);
            square[c] = qk::load(some);
        }
    }

private:
    const T* from_;
    Index stride_, n_rows_, n_cols_, safe_;
};

// Scores that are one dense term and biases, in one pass; the numbers are the same as those of add_dense on a tile of
// biases. Where the matrix is read along its rows, their maxima are found at the same time.
template <class T, LateSides Sides>
[[gnu::noinline]] void set_dense(const DenseTerm<T>& term, RowBlock<T>& block,
                                 const PackedColumns<T>& columns, Index first_col, Index n_cols, Index padded,
                                 T* tile, Index ld) {
    constexpr Index width = SimdTraits<T>::width;
    const MatrixView<T>& z = term.values;
    const T* bias = columns.bias.data() + first_col;
    const Pack<T> scale = broadcast(term.scale);
    const auto later = [&](Index r) { return LateBiases<T, Sides>(columns, block, first_col, r); };
    // Computed in a lane of packs, so that edges round like the rest, whatever the compiler fuses.
    const auto one = [&](Index r, Index j) {
        const Pack<T> value = broadcast(z(block.first_row + r, first_col + j));
        const Pack<T> s = fma(value, scale, broadcast(block.bias[r] + bias[j]));
        tile[r * ld + j] = later(r).add_one(s[0], j);
    };
    const Index whole_cols = n_cols / width * width;
    Index r = 0;
    if (column_major(z)) {
        const ColumnsDown<T> down(z, block, first_col, n_cols);
        // From memory it is faster to read all rows of some columns together, from the cache a pack of rows at a time:
        // the columns of a tile lie so far apart that longer pieces of them push each other out of the L1 cache.
        const bool cached =
            columns.n_padded * std::abs(z.col_stride) * static_cast<Index>(sizeof(T)) <= tuning::cached_bytes;
        const Index together = cached ? width : std::max<Index>(1, block.n_rows);
        for (Index top = 0; top < block.n_rows; top += together)
            for (Index j = 0; j < whole_cols; j += width) {
                if (!cached) down.fetch(j + 2 * width);
                const Pack<T> b = load(bias + j);
                // The biases of the columns are loaded once here, because the compiler cannot know that `tile` is other
                // memory.
                const Pack<T> reference =
                    col_references(Sides) ? load(columns.reference.data() + first_col + j) : Pack<T>{};
                const Pack<T> late = late_cols(Sides) ? load(columns.late.data() + first_col + j) : Pack<T>{};
                const auto finished = [&](Pack<T> value, Index row) {
                    const Pack<T> s = fma(value, scale, block.bias[row] + b);
                    return add_late_biases<Sides>(s, row_references(Sides) ? block.reference[row] : T(0),
                                                  reference, late_rows(Sides) ? block.late[row] : T(0), late);
                };
                for (r = top; r < std::min(block.n_rows, top + together); r += width) {
                    Pack<T> square[SimdTraits<T>::width];
                    down.load(r, j, square);
                    transpose<T>(square);
                    const Index live = std::min(width, block.n_rows - r);
                    T* to = tile + r * ld + j;
                    if (live == width) {
#pragma GCC unroll 16
                        for (Index c = 0; c < width; ++c) store(to + c * ld, finished(square[c], r + c));
                    } else {
                        for (Index c = 0; c < live; ++c) store(to + c * ld, finished(square[c], r + c));
                    }
                }
            }
        r = block.n_rows;
    } else if (z.col_stride == 1) {
        for (; r < block.n_rows; ++r) {
            const T* src = &z(block.first_row + r, first_col);
            const Pack<T> row_bias = broadcast(block.bias[r]);
            const auto late = later(r);
            Pack<T> top = broadcast(-infinity<T>());
            for (Index j = 0; j < whole_cols; j += width) {
                const Pack<T> s = late.add(fma(load(src + j), scale, row_bias + load(bias + j)), j);
                top = max(s, top);
                store(tile + r * ld + j, s);
            }
            block.tops[r] = reduce_max<T>(top);
        }
        block.tops_known = true;
    }
    const Index whole_rows = r;
    for (r = 0; r < block.n_rows; ++r) {
        const Index rest = r < whole_rows ? whole_cols : 0;
        for (Index j = rest; j < n_cols; ++j) one(r, j);
        if (block.tops_known)
            for (Index j = rest; j < n_cols; ++j) block.tops[r] = std::max(block.tops[r], tile[r * ld + j]);
        std::fill(tile + r * ld + n_cols, tile + r * ld + padded, -infinity<T>());
    }
}

// tile += the late biases; the largest score of every row is found at the same time.
template <class T, LateSides Sides>
void finish_tile(const PackedColumns<T>& columns, RowBlock<T>& block, Index first_col, Index padded, T* tile,
                 Index ld) {
    constexpr Index width = SimdTraits<T>::width;
    block.tops.reserve(block.n_rows);
    for (Index r = 0; r < block.n_rows; ++r) {
        const LateBiases<T, Sides> late(columns, block, first_col, r);
        Pack<T> top = broadcast(-infinity<T>());
        for (Index j = 0; j < padded; j += width) {
            const Pack<T> s = late.add(load(tile + r * ld + j), j);
            top = max(s, top);
            store(tile + r * ld + j, s);
        }
        block.tops[r] = reduce_max<T>(top);
    }
    block.tops_known = true;
}

// The entries that the tile after the one that ends before `next_col` will read, if it reads along the rows of a
// matrix.
template <class T>
Ahead<T> entries_ahead(const Problem<T>& problem, const RowBlock<T>& block, Index next_col) {
    const MatrixView<T>& z = problem.dense.front().values;
    if (column_major(z) || z.col_stride != 1) return {};
    const bool same_rows = next_col < problem.n_cols;
    const Index row = same_rows ? block.first_row : block.first_row + block.n_rows;
    const Index n_rows = std::min(block.n_rows, problem.n_rows - row);
    if (n_rows <= 0) return {};
    return {&z(row, same_rows ? next_col : 0), z.row_stride, n_rows};
}

template <class T>
void apply_masks(const Problem<T>& problem, const RowBlock<T>& block, Index first_col, Index n_cols, T* tile,
                 Index ld) {
    const T none = -infinity<T>();
    if (!problem.band.everything()) {
        for (Index r = 0; r < block.n_rows; ++r) {
            const Index i = block.first_row + r;
            const Index from =
                std::clamp(problem.band.first(i, problem.n_cols) - first_col, Index{0}, n_cols);
            const Index to = std::clamp(problem.band.end(i, problem.n_cols) - first_col, from, n_cols);
            std::fill(tile + r * ld, tile + r * ld + from, none);
            std::fill(tile + r * ld + to, tile + r * ld + n_cols, none);
        }
    }
    for (const DenseMask& mask : problem.masks)
        for (Index r = 0; r < block.n_rows; ++r) {
            T* dst = tile + r * ld;
            for (Index j = 0; j < n_cols; ++j)
                dst[j] = mask.keep(block.first_row + r, first_col + j) ? dst[j] : none;
        }
}

}  // namespace

template <class T>
PackedColumns<T> pack_columns(const Problem<T>& problem, MatrixView<T> values, Index n_values, const Run& run,
                              bool as_many) {
    PackedColumns<T> packed;
    repack_columns(problem, values, n_values, run, as_many, packed);
    return packed;
}

template <class T>
void repack_columns(const Problem<T>& problem, MatrixView<T> values, Index n_values, const Run& run,
                    bool as_many, PackedColumns<T>& packed) {
    constexpr Index cols = MicroTile<T>::cols;
    packed.dims = {};
    for_each_run(problem, [&](const FeatureRun<T>& features, std::size_t number, Index) {
        packed.dims.counts[number] += features.count;
    });
    if (!problem.distances.empty()) packed.distance_scale = problem.distances.front().scale;
    packed.n_padded = round_up(problem.n_cols, cols);
    const Index n_panels = packed.n_padded / cols;
    const Index d = packed.dims.total();

    packed.panels.reserve(packed.n_padded * d);
    packed.n_packs = 0;
    if (as_many || n_values > tuning::few_values)
        packed.n_packs = round_up(n_values, SimdTraits<T>::width) / SimdTraits<T>::width;
    packed.values.reserve(packed.n_padded *
                          (packed.n_packs > 0 ? packed.n_packs * SimdTraits<T>::width : n_values));
    packed.late_sides = late_sides_of(problem);
    packed.bias.reserve(packed.n_padded);
    if (packed.has_late()) {
        packed.reference.reserve(packed.n_padded);
        packed.late.reserve(packed.n_padded);
    }

    // Biases are packed in separate tasks too, because a row may have so many columns that filling an array takes
    // seconds.
    const Index n_tasks = (n_panels + tuning::panels_per_task - 1) / tuning::panels_per_task;
    parallel_for(n_tasks > 64 || d + n_values > 0 ? run : alone(run, 0), n_tasks, [&](Index task, int) {
        const Index first = task * tuning::panels_per_task;
        const Index end = std::min(n_panels, first + tuning::panels_per_task);
        for (Index p = first; d > 0 && p < end; ++p) pack_panel(problem, p, d, packed.panels.data());
        if (n_values > 0) pack_values(values, problem.n_cols, n_values, first * cols, end * cols, packed);
        pack_biases(problem, first * cols, end * cols, packed);
    });
}

template <class T>
void pack_rows(const Problem<T>& problem, const PackedColumns<T>& columns, Index first_row, Index n_rows,
               RowBlock<T>& block) {
    const Index d = columns.dims.total();
    block.first_row = first_row;
    block.n_rows = n_rows;
    block.features.reserve(n_rows * d);
    block.bias.reserve(n_rows);
    for_each_run(problem, [&](const FeatureRun<T>& run, std::size_t, Index at) {
        for (Index r = 0; r < n_rows; ++r)
            for (Index k = 0; k < run.count; ++k)
                block.features[r * d + at + k] = run.row_factor * run.term.rows(first_row + r, run.from + k);
    });
    std::fill(block.bias.data(), block.bias.data() + n_rows, T(0));
    if (columns.has_late())
        for (auto* sums : {&block.reference, &block.late}) {
            sums->reserve(n_rows);
            std::fill(sums->data(), sums->data() + n_rows, T(0));
        }
    const bool early_references = references_are_early(problem);
    for (const auto& term : problem.row_bias) {
        T* sums = stage_of(term, early_references, block).data();
        for (Index r = 0; r < n_rows; ++r) sums[r] += term[first_row + r];
    }
}

template <class T>
Index score_block(const Problem<T>& problem, const PackedColumns<T>& columns, Index first_col, Index n_cols,
                  RowBlock<T>& block, Index ld, Index at) {
    constexpr Index cols = MicroTile<T>::cols;
    const Index padded = round_up(n_cols, cols);
    const Index d = columns.dims.total();
    T* tile = block.scores.data() + at;
    std::size_t terms_done = 0;
    bool finished = !columns.has_late();
    block.tops_known = false;
    block.ahead = {};
    if (d == 0 && !problem.dense.empty()) {
        block.tops.reserve(block.n_rows);
        const bool alone = problem.dense.size() == 1;
        with_sides(alone ? columns.late_sides : LateSides::none, [&]<LateSides Sides>() {
            set_dense<T, Sides>(problem.dense.front(), block, columns, first_col, n_cols, padded, tile, ld);
        });
        finished = finished || alone;
        block.ahead = entries_ahead(problem, block, first_col + n_cols);
        terms_done = 1;
    } else {
        score_tile(block.features.data(), block.n_rows, columns.panels.data() + first_col * d, padded / cols,
                   columns.dims, columns.distance_scale, block.bias.data(), columns.bias.data() + first_col,
                   tile, ld);
    }
    for (; terms_done < problem.dense.size(); ++terms_done) {
        add_dense(problem.dense[terms_done], block, first_col, n_cols, tile, ld);
        block.tops_known = false;
    }
    if (!problem.band.everything() || !problem.masks.empty()) {
        apply_masks(problem, block, first_col, n_cols, tile, ld);
        block.tops_known = false;
    }
    if (!finished)
        with_sides(columns.late_sides, [&]<LateSides Sides>() {
            finish_tile<T, Sides>(columns, block, first_col, padded, tile, ld);
        });
    return padded;
}

#define QK_INSTANTIATE(T)                                                                              \
    template PackedColumns<T> pack_columns(const Problem<T>&, MatrixView<T>, Index, const Run&, bool); \
    template void repack_columns(const Problem<T>&, MatrixView<T>, Index, const Run&, bool,            \
                                 PackedColumns<T>&);                                                   \
    template void pack_rows(const Problem<T>&, const PackedColumns<T>&, Index, Index, RowBlock<T>&);   \
    template Index score_block(const Problem<T>&, const PackedColumns<T>&, Index, Index, RowBlock<T>&, \
                               Index, Index);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
