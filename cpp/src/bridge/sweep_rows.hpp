// Row kernels of the sweeps: products of rows with one vector, and rows added to column sums. Rows are padded to whole
// pairs of packs. Entries are of type E and everything else of type T; these are the same, or floats with double
// arithmetic.
#pragma once

#include <algorithm>
#include <type_traits>

#include "engine/tuning.hpp"
#include "qk/few_rows.hpp"
#include "qk/simd.hpp"
#include "qk/threads.hpp"
#include "qk/views.hpp"

namespace qk {

using tuning::stored_rows;  // the stored rows that share one pass over the column sums
using tuning::sweep_chunk;  // longer sums continue in double
using tuning::sweep_rows;   // the rows, computed on the fly, that share one pass over the column sums

template <class T, class E>
QK_INLINE Pack<T> load_entries(const E* w) {
    if constexpr (std::is_same_v<T, E>)
        return load(w);
    else
        return load_as_doubles(w);
}

// dots[r] = sum_j w_rj z_j
template <class T, int R, class E>
QK_INLINE void dot_rows(const E* w, Index ld, const T* z, Index n, double* dots) {
    constexpr int width = SimdTraits<T>::width;
    for (int r = 0; r < R; ++r) dots[r] = 0;
    for (Index first = 0; first < n; first += sweep_chunk) {
        const Index end = first + sweep_chunk < n ? first + sweep_chunk : n;
        Pack<T> acc[R][2] = {};
        for (Index j = first; j < end; j += 2 * width) {
            const Pack<T> z0 = load(z + j), z1 = load(z + j + width);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                acc[r][0] = fma(load_entries<T>(w + r * ld + j), z0, acc[r][0]);
                acc[r][1] = fma(load_entries<T>(w + r * ld + j + width), z1, acc[r][1]);
            }
        }
        for (int r = 0; r < R; ++r) dots[r] += static_cast<double>(reduce_add<T>(acc[r][0] + acc[r][1]));
    }
}

// sums_j += sum_r c_r w_rj. `ahead` are the rows that will be read next, or null. Memory would be idle while rows in
// the cache are added, so the next rows are prefetched meanwhile.
template <class T, int R, class E>
QK_INLINE void add_rows(const E* w, Index ld, const T* c, Index n, T* sums, const E* ahead) {
    constexpr int width = SimdTraits<T>::width;
    constexpr Index line = 64 / static_cast<Index>(sizeof(E)), ask = std::max<Index>(line, 2 * width);
    Pack<T> factor[R];
    for (int r = 0; r < R; ++r) factor[r] = broadcast(c[r]);
    for (Index j = 0; j < n; j += 2 * width) {
        if (ahead != nullptr && j % ask == 0)
            for (int r = 0; r < R; ++r)
                for (Index at = 0; at < ask; at += line) __builtin_prefetch(ahead + r * ld + j + at);
        Pack<T> a0 = load(sums + j), a1 = load(sums + j + width);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            a0 = fma(load_entries<T>(w + r * ld + j), factor[r], a0);
            a1 = fma(load_entries<T>(w + r * ld + j + width), factor[r], a1);
        }
        store(sums + j, a0);
        store(sums + j + width, a1);
    }
}

// The same for up to 4 rows, or for stored_rows of them.
template <class T, class E>
void dot_some_rows(int n_rows, const E* w, Index ld, const T* z, Index n, double* dots) {
    if (n_rows == stored_rows) return dot_rows<T, stored_rows>(w, ld, z, n, dots);
    with_few_rows(n_rows, [&](auto rows) { dot_rows<T, rows()>(w, ld, z, n, dots); });
}

template <class T, class E>
void add_some_rows(int n_rows, const E* w, Index ld, const T* c, Index n, T* sums, const E* ahead) {
    if (n_rows == stored_rows) return add_rows<T, stored_rows>(w, ld, c, n, sums, ahead);
    with_few_rows(n_rows, [&](auto rows) { add_rows<T, rows()>(w, ld, c, n, sums, ahead); });
}

// The number of rows in the next group if `left` are left: stored_rows, or otherwise 4 at most.
inline int next_rows(Index left) {
    return left >= stored_rows ? stored_rows : static_cast<int>(std::min<Index>(left, 4));
}

// The column sums of one thread. They are added in T, and moved to double before rounding errors of long columns add
// up.
template <class T>
class ColumnSums {
public:
    // Returns false if it was stopped.
    bool start(Index n, const Run& run, int worker) {
        n_ = n;
        pending_rows_ = 0;
        pending_.reserve(n);
        total_.reserve(n);
        return in_pieces(run, worker, n, [&](Index first, Index end) {
            std::fill(pending_.data() + first, pending_.data() + end, T(0));
            std::fill(total_.data() + first, total_.data() + end, 0.0);
        });
    }
    template <class E>
    void add(int n_rows, const E* w, Index ld, const T* c, const E* ahead = nullptr) {
        add(n_rows, w, ld, c, 0, n_, ahead);
        added(n_rows);
    }
    // Adds columns [first, first + n) only; call added() when all columns have been added.
    template <class E>
    void add(int n_rows, const E* w, Index ld, const T* c, Index first, Index n, const E* ahead = nullptr) {
        for (int r = 0, some = 0; r < n_rows; r += some) {
            some = next_rows(n_rows - r);
            add_some_rows(some, w + r * ld, ld, c + r, n, pending_.data() + first, ahead);
        }
    }
    void added(int n_rows) {
        pending_rows_ += n_rows;
        if (pending_rows_ < tuning::flush_rows) return;
        flush(0, n_);
        pending_rows_ = 0;
    }
    // The sums, which are complete for columns [first, end).
    const double* finish(Index first, Index end) {
        flush(first, end);
        return total_.data();
    }

private:
    void flush(Index first, Index end) {
        for (Index j = first; j < end; ++j) {
            total_[j] += static_cast<double>(pending_[j]);
            pending_[j] = T(0);
        }
    }

    Index n_ = 0;
    int pending_rows_ = 0;
    Buffer<T> pending_;
    Buffer<double> total_;
};

// Rows may be so long that Ctrl-C must be checked within them, after every so many entries: a multiple of sweep_chunk.
template <class T, class E>
void add_long_rows(ColumnSums<T>& sums, int n_rows, const E* w, Index ld, const T* c, const E* ahead,
                   const Run& run, int worker) {
    for (Index j = 0; j < ld; j += tuning::poll_entries) {
        if (j > 0 && should_stop(run, worker)) return;
        sums.add(n_rows, w + j, ld, c, j, std::min(tuning::poll_entries, ld - j),
                 ahead != nullptr ? ahead + j : ahead);
    }
    sums.added(n_rows);
}

template <class T, class E>
void dot_long_rows(int n_rows, const E* w, Index ld, const T* z, double* dots, const Run& run, int worker) {
    dot_some_rows(n_rows, w, ld, z, std::min(tuning::poll_entries, ld), dots);
    for (Index j = tuning::poll_entries; j < ld; j += tuning::poll_entries) {
        if (should_stop(run, worker)) return;
        double more[stored_rows];
        dot_some_rows(n_rows, w + j, ld, z + j, std::min(tuning::poll_entries, ld - j), more);
        for (int r = 0; r < n_rows; ++r) dots[r] += more[r];
    }
}

}  // namespace qk
