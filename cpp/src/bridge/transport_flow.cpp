#include "qk/transport_flow.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

namespace qk {
namespace {

// Non-negative whole numbers of `size` words each, least significant first; number k starts at k * size.
class Masses {
public:
    Masses(Index count, Index size) : size_(size), words_(static_cast<std::size_t>(count * size)) {}

    Index append() {
        words_.resize(words_.size() + static_cast<std::size_t>(size_));
        return static_cast<Index>(words_.size()) / size_ - 1;
    }

    const std::uint64_t* operator[](Index k) const { return words_.data() + k * size_; }

    bool zero(Index k) const {
        return std::all_of((*this)[k], (*this)[k] + size_, [](std::uint64_t w) { return w == 0; });
    }

    void set(Index k, const std::vector<std::uint64_t>& value) {
        std::ranges::copy(value, words_.begin() + k * size_);
    }

    void add(Index k, const std::vector<std::uint64_t>& value) {
        std::uint64_t* out = words_.data() + k * size_;
        std::uint64_t carry = 0;
        for (std::size_t w = 0; w < value.size(); ++w) {
            const std::uint64_t partial = out[w] + carry;
            carry = partial < carry;
            out[w] = partial + value[w];
            carry += out[w] < partial;
        }
    }

    // Requires value <= number k.
    void subtract(Index k, const std::vector<std::uint64_t>& value) {
        std::uint64_t* out = words_.data() + k * size_;
        std::uint64_t borrow = 0;
        for (std::size_t w = 0; w < value.size(); ++w) {
            const std::uint64_t partial = out[w] - borrow;
            borrow = partial > out[w];
            borrow += partial < value[w];
            out[w] = partial - value[w];
        }
    }

    // value = min(value, number k)
    void lower(std::vector<std::uint64_t>& value, Index k) const {
        const std::uint64_t* other = (*this)[k];
        for (auto w = static_cast<std::size_t>(size_); w-- > 0;) {
            if (other[w] == value[w]) continue;
            if (other[w] < value[w]) std::copy(other, other + size_, value.begin());
            return;
        }
    }

    // The quotient of number k and number `other` of `others`, rounded to double.
    double ratio(Index k, const Masses& others, Index other) const {
        const auto [a, a_exponent] = leading(k);
        const auto [b, b_exponent] = others.leading(other);
        return std::ldexp(a / b, a_exponent - b_exponent);
    }

private:
    // The first two words that are not 0, as a double and a binary exponent.
    std::pair<double, int> leading(Index k) const {
        Index top = size_ - 1;
        while (top > 0 && (*this)[k][top] == 0) --top;
        const double below = top > 0 ? std::ldexp(static_cast<double>((*this)[k][top - 1]), -64) : 0.0;
        return {static_cast<double>((*this)[k][top]) + below, 64 * static_cast<int>(top)};
    }

    Index size_;
    std::vector<std::uint64_t> words_;
};

// A weight as mantissa times a power of two; the mantissa is odd, or 0.
struct Binary {
    std::uint64_t mantissa = 0;
    int exponent = 0;

    explicit Binary(double weight) {
        if (weight == 0) return;
        mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(weight, &exponent), 53));
        const int zeros = std::countr_zero(mantissa);
        mantissa >>= zeros;
        exponent += zeros - 53;
    }
};

// A unit that divides all weights, as a binary exponent, and the number of words that a sum of weights takes in this
// unit.
struct Scale {
    int unit = 0;
    Index words = 1;

    Scale(const double* mu, Index n, const double* nu, Index m) {
        int low = std::numeric_limits<int>::max(), high = std::numeric_limits<int>::min();
        const auto look = [&](const double* weights, Index count) {
            for (Index i = 0; i < count; ++i) {
                const Binary w(weights[i]);
                if (w.mantissa == 0) continue;
                low = std::min(low, w.exponent);
                high = std::max(high, w.exponent + static_cast<int>(std::bit_width(w.mantissa)));
            }
        };
        look(mu, n);
        look(nu, m);
        if (low > high) return;  // all weights are 0
        unit = low;
        const int bits =
            high - low + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max(n, m))));
        words = bits / 64 + 1;
    }

    // factor (an integer of `factor_words` words) times the weight in units; twice the words hold any such product
    std::vector<std::uint64_t> times(const std::uint64_t* factor, Index factor_words, double weight) const {
        std::vector<std::uint64_t> out(static_cast<std::size_t>(2 * words + 1));
        const Binary w(weight);
        if (w.mantissa == 0) return out;
        const int shift = w.exponent - unit;
        const auto first = static_cast<std::size_t>(shift / 64);
        const int bit = shift % 64;
        __extension__ using Wide = unsigned __int128;
        const Wide mantissa = static_cast<Wide>(w.mantissa) << bit;  // of at most 53 + 63 bits: two words
        const std::uint64_t parts[2] = {static_cast<std::uint64_t>(mantissa),
                                        static_cast<std::uint64_t>(mantissa >> 64)};
        for (std::size_t p = 0; p < 2; ++p) {
            if (parts[p] == 0) continue;
            Wide carry = 0;
            std::size_t at = first + p;
            for (Index k = 0; k < factor_words; ++k, ++at) {
                carry += static_cast<Wide>(parts[p]) * factor[k] + out[at];
                out[at] = static_cast<std::uint64_t>(carry);
                carry >>= 64;
            }
            for (; carry != 0; ++at) {
                carry += out[at];
                out[at] = static_cast<std::uint64_t>(carry);
                carry >>= 64;
            }
        }
        return out;
    }
};

// Dinic's algorithm: in each phase flow is pushed along shortest paths only, until no path of that length is left.
class Search {
public:
    Search(const std::uint8_t* allowed, Index n, Index m, const double* mu, const double* nu, const Run& run)
        : allowed_(allowed),
          n_(n),
          m_(m),
          run_(run),
          scale_(mu, n, nu, m),
          totals_(2, 2 * scale_.words + 1),
          row_rest_(n, 2 * scale_.words + 1),
          col_rest_(m, 2 * scale_.words + 1),
          flow_(0, 2 * scale_.words + 1),
          carriers_(static_cast<std::size_t>(m)) {
        // Rows are multiplied by the total of the columns, and columns by the total of the rows. Then both have the
        // same total, even if rounding made the totals of the weights differ.
        const std::uint64_t one = 1;
        for (Index i = 0; i < n; ++i) totals_.add(0, scale_.times(&one, 1, mu[i]));
        for (Index j = 0; j < m; ++j) totals_.add(1, scale_.times(&one, 1, nu[j]));
        for (Index i = 0; i < n; ++i) row_rest_.set(i, scale_.times(totals_[1], scale_.words, mu[i]));
        for (Index j = 0; j < m; ++j) col_rest_.set(j, scale_.times(totals_[0], scale_.words, nu[j]));
    }

    TransportFlow solve() {
        while (find_levels()) {
            next_col_.assign(static_cast<std::size_t>(n_), 0);
            next_carrier_.assign(static_cast<std::size_t>(m_), 0);
            for (Index i = 0; i < n_; ++i)
                while (!row_rest_.zero(i) && find_path(i)) {
                    if (should_stop(run_, 0)) return {};
                    push();
                }
        }
        return result();
    }

private:
    struct Carrier {
        Index row, flow;  // flow: the index of the amount that the entry carries
    };

    // Computes distances from the rows with mass left to the nearest columns with room; returns false if there are
    // none.
    bool find_levels() {
        row_level_.assign(static_cast<std::size_t>(n_), -1);
        col_level_.assign(static_cast<std::size_t>(m_), -1);
        std::vector<Index> rows, cols, unseen;
        for (Index i = 0; i < n_; ++i)
            if (!row_rest_.zero(i)) {
                row_level_[at(i)] = 0;
                rows.push_back(i);
            }
        for (Index j = 0; j < m_; ++j) unseen.push_back(j);
        for (Index level = 1; !rows.empty(); level += 2) {
            if (should_stop(run_, 0)) return false;
            cols.clear();
            for (const Index i : rows)
                std::erase_if(unseen, [&](Index j) {
                    if (allowed_[i * m_ + j] == 0) return false;
                    col_level_[at(j)] = level;
                    cols.push_back(j);
                    return true;
                });
            last_level_ = level;
            if (std::ranges::any_of(cols, [&](Index j) { return !col_rest_.zero(j); })) return true;
            rows.clear();
            for (const Index j : cols)
                for (const Carrier& c : carriers_[at(j)])
                    if (row_level_[at(c.row)] < 0 && !flow_.zero(c.flow)) {
                        row_level_[at(c.row)] = level + 1;
                        rows.push_back(c.row);
                    }
        }
        return false;
    }

    // Finds the next shortest path from row `start` to a column with room, as rows and columns in turn.
    bool find_path(Index start) {
        path_.assign(1, start);
        while (!path_.empty()) {
            const Index here = path_.back();
            if (path_.size() % 2 == 1) {  // the path ends with a row
                Index& j = next_col_[at(here)];
                while (j < m_ &&
                       (allowed_[here * m_ + j] == 0 || col_level_[at(j)] != row_level_[at(here)] + 1))
                    ++j;
                if (j < m_) {
                    path_.push_back(j);
                    continue;
                }
                path_.pop_back();
                if (!path_.empty()) ++next_carrier_[at(path_.back())];
            } else {
                if (col_level_[at(here)] == last_level_ && !col_rest_.zero(here)) return true;
                Index& k = next_carrier_[at(here)];
                const std::vector<Carrier>& carriers = carriers_[at(here)];
                while (at(k) < carriers.size() &&
                       (row_level_[at(carriers[at(k)].row)] != col_level_[at(here)] + 1 ||
                        flow_.zero(carriers[at(k)].flow)))
                    ++k;
                if (at(k) < carriers.size()) {
                    path_.push_back(carriers[at(k)].row);
                    continue;
                }
                path_.pop_back();
                ++next_col_[at(path_.back())];
            }
        }
        return false;
    }

    // Pushes as much as the path can take.
    void push() {
        const Index first = path_.front(), last = path_.back();
        std::vector<std::uint64_t> amount(row_rest_[first], row_rest_[first] + 2 * scale_.words + 1);
        col_rest_.lower(amount, last);
        for (std::size_t k = 1; k + 1 < path_.size(); k += 2)
            flow_.lower(amount, flow_at(path_[k + 1], path_[k]));
        row_rest_.subtract(first, amount);
        col_rest_.subtract(last, amount);
        for (std::size_t k = 0; k + 1 < path_.size(); k += 2) {
            flow_.add(flow_at(path_[k], path_[k + 1]), amount);
            if (k + 2 < path_.size()) flow_.subtract(flow_at(path_[k + 2], path_[k + 1]), amount);
        }
    }

    // The number of the amount that entry (i, j) carries; if it has carried nothing yet, a new one with the value 0.
    Index flow_at(Index i, Index j) {
        const auto [found, fresh] = numbers_.try_emplace(i * m_ + j, 0);
        if (fresh) {
            found->second = flow_.append();
            carriers_[at(j)].push_back({i, found->second});
        }
        return found->second;
    }

    TransportFlow result() const {
        TransportFlow out;
        for (Index j = 0; j < m_; ++j)
            for (const Carrier& c : carriers_[at(j)])
                if (!flow_.zero(c.flow)) {
                    out.rows.push_back(c.row);
                    out.cols.push_back(j);
                    out.amounts.push_back(mass(flow_, c.flow));
                }
        for (Index i = 0; i < n_; ++i) out.row_rest.push_back(mass(row_rest_, i));
        for (Index j = 0; j < m_; ++j) out.col_rest.push_back(mass(col_rest_, j));
        return out;
    }

    // In the unit of the weights of the rows, so the total of the columns is divided out.
    double mass(const Masses& masses, Index k) const {
        return std::ldexp(masses.ratio(k, totals_, 1), scale_.unit);
    }

    static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

    const std::uint8_t* allowed_;
    Index n_, m_;
    const Run& run_;
    Scale scale_;
    Masses totals_;  // of rows and of columns
    Masses row_rest_, col_rest_, flow_;
    std::vector<std::vector<Carrier>> carriers_;  // of each column
    std::unordered_map<Index, Index> numbers_;    // of entries i * m + j that carry or carried something
    std::vector<Index> row_level_, col_level_, next_col_, next_carrier_, path_;
    Index last_level_ = 0;
};

}  // namespace

TransportFlow largest_flow(const std::uint8_t* allowed, Index n, Index m, const double* mu, const double* nu,
                           const Run& run) {
    return Search(allowed, n, m, mu, nu, run).solve();
}

}  // namespace qk
