#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "qk/arrays.hpp"
#include "qk/bridge_kernels.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

// A matrix a b^T of rank one whose entries are at least as large as the sizes of the kernel's. It is 0 in rows and
// columns whose sum in the kernel is exactly 0, as that of rows and columns of zeros is.
struct Majorant {
    std::vector<double> rows, columns;
};

// The factor of the majorant falls from 1 to exp(-range). This is nearly the smallest normal double: with a smaller
// factor, scalings that make up for it would be larger than any double.
constexpr double range = 700;

// A kernel, or the sum of a kernel and a multiple of its majorant.
class Factored final : public FactoredSweep {
public:
    Factored(const FactorSide<double>& left, const FactorSide<double>& right, Signs signs,
             std::shared_ptr<const Majorant> majorant = nullptr, double share = 0)
        : left_(left),
          right_(right),
          signs_(signs),
          majorant_(std::move(majorant)),
          share_(share),
          z_(size(right)),
          row_sums_(size(left)),
          w_(size(left)),
          column_sums_(size(right)) {
        if (signs_ != Signs::followed) return;
        row_signs_.assign(size(left), 1.0);
        column_signs_.assign(size(right), 1.0);
    }

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        // Only ratios of the scalings matter, so the largest one is set to 1.
        const double top = scaling(g, column_signs_, z_);
        if (!row_products(z_, row_sums_, run)) return Status::interrupted;
        for (std::size_t i = 0; i < w_.size(); ++i) {
            const double sum = row_sums_[i];
            if (!std::isfinite(sum)) return Status::overflow;
            const double size = signs_ == Signs::followed ? std::abs(sum) : sum;
            lse[i] = std::max(size, 0.0);
            // A row whose sum is not positive must have no mass. This is checked before any other row is used.
            if (size > 0 || signs_ == Signs::nonnegative) continue;
            if (columns == nullptr || mass(static_cast<Index>(i), std::nan("")) != 0) return Status::negative;
        }
        logs(lse, row_sums_.size(), top);
        for (std::size_t i = 0; i < w_.size(); ++i) {
            if (!row_signs_.empty()) row_signs_[i] = row_sums_[i] < 0 ? -1.0 : 1.0;
            const double m =
                columns == nullptr || lse[i] == log_of_nothing ? 0.0 : mass(static_cast<Index>(i), lse[i]);
            w_[i] = m == 0 ? 0.0 : m / row_sums_[i];
        }
        if (columns == nullptr) return Status::ok;
        if (!column_products(w_, column_sums_, run)) return Status::interrupted;
        for (std::size_t j = 0; j < z_.size(); ++j) {
            const bool live = g[j] != log_of_nothing;
            if (live && signs_ == Signs::guarded && !(column_sums_[j] > 0)) return Status::negative;
            columns[j] = z_[j] * column_sums_[j];
        }
        live_.assign(g, g + z_.size());
        return Status::ok;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        const double top = scaling(f, row_signs_, w_);
        if (!column_products(w_, column_sums_, run)) return Status::interrupted;
        for (std::size_t j = 0; j < z_.size(); ++j) {
            const double sum = column_sums_[j];
            if (!std::isfinite(sum)) return Status::overflow;
            const bool lost = signs_ == Signs::guarded ? !(sum > 0) : signs_ == Signs::followed && sum == 0;
            if (lost && (live_.empty() || live_[j] != log_of_nothing)) return Status::negative;
            if (signs_ == Signs::followed) column_signs_[j] = sum < 0 ? -1.0 : 1.0;
            const double size = signs_ == Signs::followed ? std::abs(sum) : sum;
            lse[j] = std::max(size, 0.0);
        }
        logs(lse, z_.size(), top);
        return Status::ok;
    }

    Status curvature(const double* x, const double* mass, double* out, bool, const Run& run) override {
        std::vector<double> moved(z_), turned(w_.size());
        for (std::size_t j = 0; j < moved.size(); ++j) moved[j] *= x[j];
        if (!row_products(moved, turned, run)) return Status::interrupted;
        for (std::size_t i = 0; i < turned.size(); ++i) {
            const double sum = row_sums_[i];
            turned[i] = sum == 0 || mass[i] == 0 ? 0.0 : mass[i] * (turned[i] / sum) / sum;
        }
        if (!column_products(turned, moved, run)) return Status::interrupted;
        for (std::size_t j = 0; j < moved.size(); ++j) out[j] = z_[j] * moved[j];
        return Status::ok;
    }

    // Adds the majorant times a factor that falls from 1 to exp(-range) as the difficulty rises from 0 to 1.
    EasierKernel easier(double difficulty, const Run& run) override {
        if (signs_ == Signs::followed) return {};
        if (!majorant_ && !find_majorant(run)) return {};
        return {std::make_unique<Factored>(left_, right_, signs_, majorant_, std::exp(-range * difficulty)),
                1.0, true};
    }

    const std::vector<double>& row_signs() const override { return row_signs_; }
    const std::vector<double>& column_signs() const override { return column_signs_; }

private:
    static std::size_t size(const FactorSide<double>& side) {
        return static_cast<std::size_t>(side.n_points);
    }

    // out = signs exp(potential - its maximum); returns the maximum.
    static double scaling(const double* potential, const std::vector<double>& signs,
                          std::vector<double>& out) {
        double top = log_of_nothing;
        for (std::size_t j = 0; j < out.size(); ++j) top = std::max(top, potential[j]);
        for (std::size_t j = 0; j < out.size(); ++j)
            out[j] = potential[j] == log_of_nothing ? log_of_nothing : potential[j] - top;
        exp_array(out.data(), static_cast<Index>(out.size()), out.data());
        for (std::size_t j = 0; j < signs.size(); ++j) out[j] *= signs[j];
        return top;
    }

    // log(sums) + top, in place
    static void logs(double* sums, std::size_t n, double top) {
        log_array(sums, static_cast<Index>(n), sums);
        for (std::size_t k = 0; k < n; ++k) sums[k] += top;
    }

    bool row_products(const std::vector<double>& z, std::vector<double>& out, const Run& run) const {
        factored_product(left_, right_, z.data(), 1, out.data(), run);
        if (share_ > 0) add(majorant_->rows, majorant_->columns, z, out);
        return !should_stop(run, 0);
    }
    bool column_products(const std::vector<double>& w, std::vector<double>& out, const Run& run) const {
        factored_product(right_, left_, w.data(), 1, out.data(), run);
        if (share_ > 0) add(majorant_->columns, majorant_->rows, w, out);
        return !should_stop(run, 0);
    }
    // out += share a <b, z>
    void add(const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& z,
             std::vector<double>& out) const {
        const double by = share_ * std::inner_product(b.begin(), b.end(), z.begin(), 0.0);
        for (std::size_t i = 0; i < out.size(); ++i) out[i] += by * a[i];
    }

    // Every expert is bounded by |sum_c L_c R_c| <= (sum_c |L_c|) max_c |R_c|. Returns false if it was interrupted.
    bool find_majorant(const Run& run) {
        Majorant found{std::vector<double>(w_.size(), 1.0), std::vector<double>(z_.size(), 1.0)};
        std::vector<double> rows(w_.size()), columns(z_.size());
        if (!row_products(found.columns, rows, run) || !column_products(found.rows, columns, run))
            return false;
        const auto bound = [](const FactorSide<double>& side, const std::vector<double>& sums, bool largest,
                              std::vector<double>& out) {
            for (const Factor<double>& one : side.experts)
                for (std::size_t i = 0; i < out.size(); ++i) {
                    double size = 0;
                    for (Index c = 0; c < one.rank; ++c) {
                        const double part = std::abs(one.data[c * one.stride + static_cast<Index>(i)]);
                        size = largest ? std::max(size, part) : size + part;
                    }
                    out[i] *= size;
                }
            for (std::size_t i = 0; i < out.size(); ++i)
                if (sums[i] == 0) out[i] = 0;
        };
        bound(left_, rows, false, found.rows);
        bound(right_, columns, true, found.columns);
        majorant_ = std::make_shared<const Majorant>(std::move(found));
        return true;
    }

    FactorSide<double> left_, right_;
    Signs signs_;
    std::shared_ptr<const Majorant> majorant_;
    double share_;                         // the factor of the majorant; 0 for the kernel itself
    std::vector<double> z_, row_sums_;     // v and K v at the last visit, up to one factor
    std::vector<double> w_, column_sums_;  // u and K^T u
    std::vector<double> live_;             // g at the last visit
    std::vector<double> row_signs_, column_signs_;
};

}  // namespace

std::unique_ptr<FactoredSweep> sweep_factored(const FactorSide<double>& left, const FactorSide<double>& right,
                                              Signs signs) {
    return std::make_unique<Factored>(left, right, signs);
}

}  // namespace qk
