// The kernels behind a C interface on host arrays, for the tests: each function uploads, runs and downloads. The same
// file is compiled over the SIMT layer and, on a machine with a device, by nvcc.
//
// Every function returns 0 or a Status; qk_message() says more. `config` 0 is what is shipped; 1 and 2 are the small
// tiles of configs.hpp, which exist only over the SIMT layer.
#include <memory>
#include <string>
#include <vector>

#include "gaussian.hpp"
#include "low_rank.hpp"
#include "particles.hpp"
#include "qk_cuda/memory.hpp"
#include "rows.hpp"
#include "scaling.hpp"
#include "sweep.hpp"
#include "vectors.hpp"

using namespace qk::cuda;

extern "C" {

// Host arrays are row-major and contiguous. dtype: 0 float, 1 double, 2 half, 3 bfloat16.
struct CFeature {
    int kind;
    const void *rows, *cols;
    Index dim;
    double scale;
};
struct CDense {
    const void* values;
    double scale;
};
struct CMask {
    const unsigned char* keep;
    Index row_stride, col_stride;
};
struct CScores {
    Index n_rows, n_cols;
    int n_features, n_dense, n_row_bias, n_col_bias, n_masks;
    CFeature features[max_terms];
    CDense dense[max_terms];
    const void* row_bias[max_terms];
    const void* col_bias[max_terms];
    CMask masks[max_terms];
    Index band_lo, band_hi;
    int transposed;
};
struct CRows {
    CScores scores;
    int weight, column_splits;
    const void* values;
    Index n_values;
    void *log_sum_exp, *product;
};
struct CSweep {
    CScores scores;
    const void *g, *mu, *nu, *shift;
    double row_damping, col_damping;
    int store_weights;
    void *lse, *f, *columns, *g_new;
    double* residual;
};
struct CScaling {
    Index n_rows, n_cols;
    const void *kernel, *v, *mu, *nu;
    void *u, *columns, *v_new;
    double* residual;
};
struct CFactored {
    int n_experts;
    Index ranks[max_terms];
    const void *left[max_terms], *right[max_terms];
    Index n_left, n_right, k;
    const void* z;
    void* out;
};
struct CVelocity {
    Index n, d, d_head, heads;
    const void *x, *Q, *K, *V;
    int weight, kind;
    double scale;
    int mean;
    Index band_lo, band_hi;
    const unsigned char* mask;
    // Afterwards out is the velocity, and if stages is not 0, stepped = x + h * velocity.
    double h;
    void *out, *stepped;
};
struct CVectors {
    Index n_rows, n_cols;
    const void *a, *b;  // b may be null
    double* figures;    // n_figures
    // Maps of n_rows * n_cols numbers with x = a, y = b, z = a; out is (n_ops, n).
    int n_ops;
    double x, y, z;
    void *maps, *dots;  // either may be null
};
struct CGaussian {
    int field;
    Index n;
    int d, heads;
    const void *score, *query, *value;
    int shared;
    double gain;
    int raw_moment, n_stages;
    double a[16], b[4];
    double h;
    Index n_steps;
    void *mean, *cov;
};
}

namespace {

std::string message;

// Device copies of host arrays, for one call.
class Arrays {
public:
    template <class T>
    T* in(const void* host, Index n) {
        if (host == nullptr) return nullptr;
        T* const device = out<T>(n);
        if (outcome_.ok()) outcome_ = upload(device, host, sizeof(T) * static_cast<std::size_t>(n), nullptr);
        return device;
    }
    template <class T>
    T* out(Index n) {
        buffers_.push_back(std::make_unique<Buffer>());
        if (outcome_.ok())
            outcome_ = buffers_.back()->reserve(sizeof(T) * static_cast<std::size_t>(n > 0 ? n : 1));
        return static_cast<T*>(buffers_.back()->data());
    }
    // An array whose contents fetch() copies back to `host`.
    template <class T>
    T* back(void* host, Index n) {
        if (host == nullptr) return nullptr;
        T* const device = out<T>(n);
        returns_.push_back({host, device, sizeof(T) * static_cast<std::size_t>(n)});
        return device;
    }
    template <class T>
    T* both(void* host, Index n) {
        T* const device = in<T>(host, n);
        returns_.push_back({host, device, sizeof(T) * static_cast<std::size_t>(n)});
        return device;
    }
    Workspace room(std::size_t bytes) { return {out<unsigned char>(static_cast<Index>(bytes)), bytes}; }

    int finish(Outcome ran) {
        if (!outcome_.ok()) ran = outcome_;
        if (ran.ok()) ran = synchronize(nullptr);
        for (const Return& r : returns_)
            if (ran.ok()) ran = download(r.host, r.device, r.bytes, nullptr);
        if (ran.ok()) ran = synchronize(nullptr);
        message = ran.what;
        return static_cast<int>(ran.status);
    }
    const Outcome& outcome() const { return outcome_; }

private:
    struct Return {
        void* host;
        const void* device;
        std::size_t bytes;
    };
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<Return> returns_;
    Outcome outcome_;
};

template <class T, class In>
Scores<T, In> to_device(const CScores& c, Arrays& arrays) {
    Scores<T, In> s;
    s.n_rows = c.n_rows;
    s.n_cols = c.n_cols;
    s.n_features = c.n_features;
    s.n_dense = c.n_dense;
    s.n_row_bias = c.n_row_bias;
    s.n_col_bias = c.n_col_bias;
    s.n_masks = c.n_masks;
    for (int t = 0; t < c.n_features && t < max_terms; ++t) {
        const CFeature& f = c.features[t];
        s.features[t] = {static_cast<FeatureKind>(f.kind),
                         {arrays.in<In>(f.rows, c.n_rows * f.dim), f.dim, 1},
                         {arrays.in<In>(f.cols, c.n_cols * f.dim), f.dim, 1},
                         f.dim,
                         static_cast<T>(f.scale)};
    }
    for (int t = 0; t < c.n_dense && t < max_terms; ++t)
        s.dense[t] = {{arrays.in<In>(c.dense[t].values, c.n_rows * c.n_cols), c.n_cols, 1},
                      static_cast<T>(c.dense[t].scale)};
    for (int t = 0; t < c.n_row_bias && t < max_terms; ++t)
        s.row_bias[t] = arrays.in<T>(c.row_bias[t], c.n_rows);
    for (int t = 0; t < c.n_col_bias && t < max_terms; ++t)
        s.col_bias[t] = arrays.in<T>(c.col_bias[t], c.n_cols);
    for (int t = 0; t < c.n_masks && t < max_terms; ++t) {
        const CMask& m = c.masks[t];
        const Index n = (c.n_rows - 1) * m.row_stride + (c.n_cols - 1) * m.col_stride + 1;
        s.masks[t] = {arrays.in<unsigned char>(m.keep, n), m.row_stride, m.col_stride};
    }
    s.band.lo = c.band_lo;
    s.band.hi = c.band_hi;
    return c.transposed != 0 ? transposed(s) : s;
}

template <class Config, class T, class In>
int rows(const CRows& c) {
    Arrays arrays;
    RowTask<T, In> task;
    task.scores = to_device<T, In>(c.scores, arrays);
    task.weight = static_cast<Weight>(c.weight);
    task.n_values = c.n_values;
    task.column_splits = c.column_splits;
    task.values = {arrays.in<In>(c.values, task.scores.n_cols * c.n_values), c.n_values, 1};
    task.log_sum_exp = arrays.back<T>(c.log_sum_exp, task.scores.n_rows);
    task.product = arrays.back<T>(c.product, task.scores.n_rows * c.n_values);
    const Workspace room = arrays.room(row_workspace<Config, T, In>(task));
    return arrays.finish(arrays.outcome().ok() ? run_rows<Config, T, In>(task, room, nullptr)
                                               : arrays.outcome());
}

template <class Config, class T>
int marginal(const CSweep& c) {
    Arrays arrays;
    MarginalTask<T> task;
    task.scores = to_device<T, T>(c.scores, arrays);
    task.rows = arrays.back<T>(c.lse, task.scores.n_rows);
    task.cols = arrays.back<T>(c.columns, task.scores.n_cols);
    const Workspace room = arrays.room(marginal_workspace<Config>(task));
    return arrays.finish(arrays.outcome().ok() ? run_marginals<Config>(task, room, nullptr)
                                               : arrays.outcome());
}

template <class Config, class T>
int dense(const CSweep& c) {
    Arrays arrays;
    DenseTask<T> task;
    task.scores = to_device<T, T>(c.scores, arrays);
    task.raw = c.store_weights != 0;
    task.row_stride = task.scores.n_cols;
    task.out = arrays.back<T>(c.lse, task.scores.n_rows * task.scores.n_cols);
    return arrays.finish(arrays.outcome().ok() ? run_dense<Config>(task, nullptr) : arrays.outcome());
}

template <class Config, class T>
int sweep(const CSweep& c) {
    Arrays arrays;
    SweepTask<T> task;
    task.scores = to_device<T, T>(c.scores, arrays);
    const Index n = task.scores.n_rows, m = task.scores.n_cols;
    task.g = arrays.in<T>(c.g, m);
    task.mu = arrays.in<T>(c.mu, n);
    task.nu = arrays.in<T>(c.nu, m);
    task.row_damping = static_cast<T>(c.row_damping);
    task.col_damping = static_cast<T>(c.col_damping);
    task.shift = arrays.in<T>(c.shift, n);
    task.lse = arrays.back<T>(c.lse, n);
    task.f = arrays.back<T>(c.f, n);
    task.columns = arrays.back<T>(c.columns, m);
    task.g_new = arrays.back<T>(c.g_new, m);
    task.residual = arrays.back<double>(c.residual, 2);
    task.store_weights = c.store_weights != 0;
    const Workspace room = arrays.room(sweep_workspace<Config>(task));
    return arrays.finish(arrays.outcome().ok() ? run_sweep<Config>(task, room, nullptr) : arrays.outcome());
}

template <class Config, class T>
int scaling(const CScaling& c) {
    Arrays arrays;
    ScalingTask<T> task;
    task.n_rows = c.n_rows;
    task.n_cols = task.row_stride = c.n_cols;
    task.kernel = arrays.in<T>(c.kernel, c.n_rows * c.n_cols);
    task.v = arrays.in<T>(c.v, c.n_cols);
    task.mu = arrays.in<T>(c.mu, c.n_rows);
    task.nu = arrays.in<T>(c.nu, c.n_cols);
    task.u = arrays.back<T>(c.u, c.n_rows);
    task.columns = arrays.back<T>(c.columns, c.n_cols);
    task.v_new = arrays.back<T>(c.v_new, c.n_cols);
    task.residual = arrays.back<double>(c.residual, 2);
    const Workspace room = arrays.room(scaling_workspace<Config>(task));
    return arrays.finish(arrays.outcome().ok() ? run_scaling<Config>(task, room, nullptr) : arrays.outcome());
}

template <class Config, class T>
int factored(const CFactored& c) {
    Arrays arrays;
    FactoredTask<T> task;
    task.n_experts = c.n_experts;
    for (int e = 0; e < c.n_experts && e < max_terms; ++e) {
        task.left[e] = {arrays.in<T>(c.left[e], c.ranks[e] * c.n_left), c.ranks[e], c.n_left};
        task.right[e] = {arrays.in<T>(c.right[e], c.ranks[e] * c.n_right), c.ranks[e], c.n_right};
    }
    task.n_left = c.n_left;
    task.n_right = c.n_right;
    task.k = c.k;
    task.z = arrays.in<T>(c.z, c.k * c.n_right);
    task.out = arrays.back<T>(c.out, c.k * c.n_left);
    const Workspace room = arrays.room(factored_workspace(task));
    return arrays.finish(arrays.outcome().ok() ? run_factored<Config>(task, room, nullptr)
                                               : arrays.outcome());
}

template <class Config, class T>
int velocity_of(const CVelocity& c) {
    Arrays arrays;
    VelocityTask<T> task;
    task.n = c.n;
    task.d = c.d;
    task.d_head = c.d_head;
    task.heads = c.heads;
    task.x = arrays.in<T>(c.x, c.n * c.d);
    task.Q = arrays.in<T>(c.Q, c.heads * c.d_head * c.d);
    task.K = arrays.in<T>(c.K, c.heads * c.d_head * c.d);
    task.V = arrays.in<T>(c.V, c.heads * c.d * c.d);
    task.weight = static_cast<Weight>(c.weight);
    task.kind = static_cast<FeatureKind>(c.kind);
    task.scale = static_cast<T>(c.scale);
    task.mean = c.mean != 0;
    task.band.lo = c.band_lo;
    task.band.hi = c.band_hi;
    task.mask = arrays.in<unsigned char>(c.mask, c.n * c.n);
    task.out = arrays.back<T>(c.out, c.n * c.d);
    const Workspace room = arrays.room(velocity_workspace<Config>(task));
    Outcome ran = arrays.outcome().ok() ? run_velocity<Config>(task, room, nullptr) : arrays.outcome();
    if (ran.ok() && c.stepped != nullptr) {
        CombineTask<T> step;
        step.n = c.n * c.d;
        step.x = task.x;
        step.n_stages = 2;  // twice half of the velocity, so that the sum over stages is tested
        step.k[0] = step.k[1] = task.out;
        step.a[0] = T(0.25);
        step.a[1] = T(0.75);
        step.h = static_cast<T>(c.h);
        step.out = arrays.back<T>(c.stepped, c.n * c.d);
        ran = run_combine<Config>(step, nullptr);
    }
    return arrays.finish(ran);
}

template <class Config, class T>
int gaussian(const CGaussian& c) {
    Arrays arrays;
    GaussianTask<T> task;
    task.field = static_cast<GaussianField>(c.field);
    task.n = c.n;
    task.d = c.d;
    task.heads = c.heads;
    const Index d = c.d, matrices = (c.shared != 0 ? 1 : c.n) * c.heads * d * d;
    task.score = arrays.in<T>(c.score, matrices);
    task.query = arrays.in<T>(c.query, matrices);
    task.value = arrays.in<T>(c.value, matrices);
    task.shared = c.shared != 0;
    task.gain = static_cast<T>(c.gain);
    task.raw_moment = c.raw_moment != 0;
    task.tableau.n_stages = c.n_stages;
    for (int s = 0; s < max_gaussian_stages; ++s) {
        task.tableau.b[s] = c.b[s];
        for (int k = 0; k < max_gaussian_stages; ++k) task.tableau.a[s][k] = c.a[4 * s + k];
    }
    task.h = static_cast<T>(c.h);
    task.n_steps = c.n_steps;
    task.mean = arrays.both<T>(c.mean, c.n * d);
    task.cov = arrays.both<T>(c.cov, c.n * d * d);
    return arrays.finish(arrays.outcome().ok() ? run_gaussian<Config>(task, nullptr) : arrays.outcome());
}

template <class Config, class T>
int vectors(const CVectors& c) {
    Arrays arrays;
    const Index n = c.n_rows * c.n_cols;
    SummaryTask<T> task;
    task.n_rows = c.n_rows;
    task.n_cols = c.n_cols;
    task.a = {arrays.in<T>(c.a, n), c.n_cols, 1};
    task.b = arrays.in<T>(c.b, n);
    task.figures = arrays.back<double>(c.figures, n_figures);
    const Workspace room = arrays.room(summary_workspace<Config>(task));
    Outcome ran = arrays.outcome().ok() ? run_summary<Config>(task, room, nullptr) : arrays.outcome();
    T* const maps = arrays.back<T>(c.maps, c.n_ops * n);
    for (int op = 0; ran.ok() && maps != nullptr && op < c.n_ops; ++op)
        ran =
            run_map<Config, T>({static_cast<VectorOp>(op), n, task.a.data, task.b, task.a.data,
                                static_cast<T>(c.x), static_cast<T>(c.y), static_cast<T>(c.z), maps + op * n},
                               nullptr);
    if (ran.ok() && c.dots != nullptr)
        ran = run_row_dots<Config, T>({c.n_rows,
                                       c.n_cols,
                                       task.a,
                                       {task.b, c.n_cols, 1},
                                       static_cast<T>(c.x),
                                       arrays.back<T>(c.dots, c.n_rows)},
                                      nullptr);
    return arrays.finish(ran);
}

int unknown() {
    message = "no such configuration or dtype";
    return static_cast<int>(Status::bad_argument);
}

}  // namespace

// One switch over (config, dtype) per function, made from the list of compiled combinations.
#define QK_CASE_REAL(Config, T) \
    if (config == config_number<Config> && dtype == dtype_number<T>) return QK_CALL<Config, T>(*task);
#define QK_CASE_INPUT(Config, T, In) \
    if (config == config_number<Config> && dtype == dtype_number<In>) return rows<Config, T, In>(*task);

template <class T>
constexpr int dtype_number = -1;
template <>
constexpr int dtype_number<float> = 0;
template <>
constexpr int dtype_number<double> = 1;
template <>
constexpr int dtype_number<Half> = 2;
template <>
constexpr int dtype_number<BFloat16> = 3;
template <class Config>
constexpr int config_number = 0;
template <>
constexpr int config_number<Small32> = 1;
template <>
constexpr int config_number<Small64> = 2;

#define QK_EXPORT extern "C" __attribute__((visibility("default")))

QK_EXPORT int qk_rows(int config, int dtype, const CRows* task) {
    QK_CUDA_CONFIGS(QK_CUDA_INPUTS, QK_CASE_INPUT)
    return unknown();
}
#define QK_CALL marginal
QK_EXPORT int qk_marginals(int config, int dtype, const CSweep* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL dense
QK_EXPORT int qk_dense(int config, int dtype, const CSweep* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL sweep
QK_EXPORT int qk_sweep(int config, int dtype, const CSweep* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL scaling
QK_EXPORT int qk_scaling(int config, int dtype, const CScaling* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL vectors
QK_EXPORT int qk_vectors(int config, int dtype, const CVectors* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL factored
QK_EXPORT int qk_factored(int config, int dtype, const CFactored* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL velocity_of
QK_EXPORT int qk_velocity(int config, int dtype, const CVelocity* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}
#undef QK_CALL
#define QK_CALL gaussian
QK_EXPORT int qk_gaussian(int config, int dtype, const CGaussian* task) {
    QK_CUDA_CONFIGS(QK_CUDA_REALS, QK_CASE_REAL)
    return unknown();
}

QK_EXPORT const char* qk_message() { return message.c_str(); }
QK_EXPORT long long qk_live_allocations() { return live_allocations(); }
QK_EXPORT int qk_device_count() {
    int count = 0;
    (void)device_count(count).ok();
    return count;
}
