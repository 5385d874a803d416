#include "qk/arrays.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <Eigen/Core>

#include "engine/tuning.hpp"
#include "qk/vector_math.hpp"
#include "qk/vector_trig.hpp"

namespace qk {
namespace {

// Folds x[0..n) into `found` by packs if all of it is finite; otherwise returns false and changes nothing.
template <class T>
bool fold_finite(const T* x, Index n, Scan& found) {
    constexpr Index width = SimdTraits<T>::width;
    // max(v, m) returns m when v is NaN, so NaN needs a check of its own.
    typename SimdTraits<T>::Bits nan = {};
    Pack<T> largest = {};
    Index i = 0;
    for (; i + width <= n; i += width) {
        const Pack<T> v = load(x + i);
        nan |= v != v;
        largest = max(max(v, -v), largest);
    }
    T top = reduce_max<T>(largest);
    for (; i < n; ++i) {
        if (std::isnan(x[i])) return false;
        top = max(std::abs(x[i]), top);
    }
    for (Index k = 0; k < width; ++k)
        if (nan[k] != 0) return false;
    if (!std::isfinite(top)) return false;
    found.max_abs = std::max(found.max_abs, static_cast<double>(top));
    return true;
}

template <class T>
void classify(const T* x, Index n, Index stride, Scan& found) {
    for (Index i = 0; i < n; ++i) {
        const T v = x[i * stride];
        if (std::isfinite(v))
            found.max_abs = std::max(found.max_abs, std::abs(static_cast<double>(v)));
        else if (std::isnan(v))
            found.nan = true;
        else if (v > T(0))
            found.plus_inf = true;
        else
            found.minus_inf = true;
    }
}

// Returns false if it was stopped.
template <class T>
bool scan_dims(const T* data, const ArrayView<T>& array, std::size_t dim, Scan& found, const Run& run) {
    const Index n = array.shape[dim];
    const Index stride = array.strides[dim];
    if (dim + 1 == array.shape.size())
        return in_pieces(run, 0, n, [&](Index first, Index end) {
            if (stride == 1 && fold_finite(data + first, end - first, found)) return;
            classify(data + first * stride, end - first, stride, found);
        });
    // Checking the clock at every short row would take longer than the rows.
    for (Index i = 0; i < n; ++i) {
        if (i % tuning::scan_poll_rows == tuning::scan_poll_rows - 1 && should_stop(run, 0)) return false;
        if (!scan_dims(data + i * stride, array, dim + 1, found, run)) return false;
    }
    return true;
}

template <class T>
bool contiguous(const ArrayView<T>& array, Index& size) {
    size = 1;
    for (std::size_t k = array.shape.size(); k-- > 0;) {
        if (array.shape[k] != 1 && array.strides[k] != size) return false;
        size *= array.shape[k];
    }
    return true;
}

}  // namespace

template <class T>
Scan scan(const ArrayView<T>& array, const Run& run) {
    Scan found;
    Index size = 0;
    if (!contiguous(array, size)) {
        scan_dims(array.data, array, 0, found, run);
        return found;
    }
    constexpr Index chunk = tuning::scan_entries;
    if (size <= chunk) {
        if (!fold_finite(array.data, size, found)) classify(array.data, size, 1, found);
        return found;
    }
    std::mutex mutex;
    parallel_for(run, (size + chunk - 1) / chunk, [&](Index task, int) {
        const T* data = array.data + task * chunk;
        const Index n = std::min(chunk, size - task * chunk);
        Scan here;
        if (!fold_finite(data, n, here)) classify(data, n, 1, here);
        const std::lock_guard<std::mutex> lock(mutex);
        found.nan |= here.nan;
        found.plus_inf |= here.plus_inf;
        found.minus_inf |= here.minus_inf;
        found.max_abs = std::max(found.max_abs, here.max_abs);
    });
    return found;
}

template <class T>
void project(Index n, Index d, Index r, MatrixView<T> x, MatrixView<T> w, T* out, const Run& run) {
    using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    RowMajor weights(d, r);
    for (Index i = 0; i < d; ++i)
        for (Index j = 0; j < r; ++j) weights(i, j) = w(i, j);
    // Rows are copied block by block, because users' arrays may have negative strides and Eigen's maps may not.
    constexpr Index block = tuning::project_rows;
    parallel_for(run, (n + block - 1) / block, [&](Index task, int) {
        const Index first = task * block;
        const Index rows = std::min(block, n - first);
        RowMajor part(rows, d);
        for (Index i = 0; i < rows; ++i)
            for (Index k = 0; k < d; ++k) part(i, k) = x(first + i, k);
        Eigen::Map<RowMajor>(out + first * r, rows, r).noalias() = part * weights;
    });
}

template <class T>
void row_dots(Index n, Index d, MatrixView<T> a, MatrixView<T> b, T* out) {
    for (Index i = 0; i < n; ++i) {
        double sum = 0;
        for (Index k = 0; k < d; ++k) sum += static_cast<double>(a(i, k)) * static_cast<double>(b(i, k));
        out[i] = static_cast<T>(sum);
    }
}

namespace {

template <class T, class F>
void for_packs(const T* x, Index n, T* out, const F& f) {
    constexpr Index width = SimdTraits<T>::width;
    Index i = 0;
    for (; i + width <= n; i += width) store(out + i, f(load(x + i)));
    if (i < n) {
        T tail[width] = {};
        std::copy(x + i, x + n, tail);
        store(tail, f(load(tail)));
        std::copy(tail, tail + (n - i), out + i);
    }
}

}  // namespace

template <class T>
void exp_array(const T* x, Index n, T* out) {
    for_packs(x, n, out, [](Pack<T> v) { return exp(v); });
}
template <class T>
void exp2_nonpos_array(const T* x, Index n, T* out) {
    for_packs(x, n, out, [](Pack<T> v) {
        Pack<T> pack[1] = {v};
        exp2_nonpos_each<T, 1>(pack);
        return pack[0];
    });
}
template <class T>
void weight_exp_array(const T* x, Index n, T* out) {
    for_packs(x, n, out, [](Pack<T> v) {
        Pack<T> pack[1] = {v};
        weight_exp_each<T, 1>(pack);
        return pack[0];
    });
}
template <class T>
void log_array(const T* x, Index n, T* out) {
    for_packs(x, n, out, [](Pack<T> v) { return log(v); });
}

template <class T>
void sincos_array(const T* x, Index n, T* sine, T* cosine) {
    constexpr Index width = SimdTraits<T>::width;
    for (Index i = 0; i < n; i += width) {
        T in[width] = {}, s[width], c[width];
        const Index live = std::min(width, n - i);
        std::copy(x + i, x + i + live, in);
        Pack<T> a, b;
        sincos<T>(load(in), a, b);
        store(s, a);
        store(c, b);
        std::copy(s, s + live, sine + i);
        std::copy(c, c + live, cosine + i);
    }
}

#define QK_INSTANTIATE(T)                                                                     \
    template Scan scan(const ArrayView<T>&, const Run&);                                      \
    template void project(Index, Index, Index, MatrixView<T>, MatrixView<T>, T*, const Run&); \
    template void row_dots(Index, Index, MatrixView<T>, MatrixView<T>, T*);                   \
    template void exp_array(const T*, Index, T*);                                             \
    template void exp2_nonpos_array(const T*, Index, T*);                                     \
    template void weight_exp_array(const T*, Index, T*);                                      \
    template void log_array(const T*, Index, T*);                                             \
    template void sincos_array(const T*, Index, T*, T*);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
