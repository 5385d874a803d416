// Vector arithmetic of the bridge solvers in pieces, because a row may have so many columns that one expression over
// all of them takes longer than Ctrl-C may wait. If the run is stopped, results are undefined; the next visit of the
// kernel then ends the solve. Vectors of one piece go to Eigen directly, which is faster for short ones. Sums are taken
// over Eigen's own vectors only, because for other memory the order of additions depends on its alignment.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>

#include <Eigen/Core>

#include "qk/threads.hpp"
#include "qk/views.hpp"

namespace qk {

// Makes room for n entries, or for a matrix, in large pages, which are allocated and freed quickly. The contents are
// lost.
inline void make_room(Eigen::VectorXd& v, Index n) {
    if (v.size() == n) return;
    v.resize(n);
    ask_for_large_pages(v.data(), static_cast<std::size_t>(n) * sizeof(double));
}
inline void make_room(Eigen::MatrixXd& m, Index rows, Index cols) {
    if (m.rows() == rows && m.cols() == cols) return;
    m.resize(rows, cols);
    ask_for_large_pages(m.data(), static_cast<std::size_t>(rows * cols) * sizeof(double));
}
template <class Part>
void make_room([[maybe_unused]] const Part& column,
               [[maybe_unused]] Index n) {  // a column of a matrix: it has room
    assert(column.size() == n);
}
inline Eigen::VectorXd room_for(Index n) {
    Eigen::VectorXd out;
    make_room(out, n);
    return out;
}

// Sets to = expression, entry by entry; `to` may occur in the expression.
template <class To, class Expression>
void set(const Run& run, To& to, const Expression& expression) {
    make_room(to, expression.size());
    if (expression.size() <= piece_entries) {
        to = expression;
        return;
    }
    in_pieces(run, 0, expression.size(), [&](Index from, Index end) {
        to.segment(from, end - from) = expression.segment(from, end - from);
    });
}

template <class Expression>
double sum(const Run& run, const Expression& expression) {
    if (expression.size() <= piece_entries) return expression.sum();
    double found = 0;
    in_pieces(run, 0, expression.size(),
              [&](Index from, Index end) { found += expression.segment(from, end - from).sum(); });
    return found;
}

template <class A, class B>
double dot(const Run& run, const A& a, const B& b) {
    if (a.size() <= piece_entries) return a.dot(b);
    double found = 0;
    in_pieces(run, 0, a.size(), [&](Index from, Index end) {
        found += a.segment(from, end - from).dot(b.segment(from, end - from));
    });
    return found;
}

template <class A>
double norm(const Run& run, const A& a) {
    return std::sqrt(dot(run, a, a));
}

template <class A>
double max_size(const Run& run, const A& a) {
    double found = 0;
    if (a.size() > 0 && a.size() <= piece_entries) return a.cwiseAbs().maxCoeff();
    in_pieces(run, 0, a.size(), [&](Index from, Index end) {
        found = std::max(found, a.segment(from, end - from).cwiseAbs().maxCoeff());
    });
    return found;
}

template <class A>
bool all_finite(const Run& run, const A& a) {
    if (a.size() <= piece_entries) return a.allFinite();
    bool found = true;
    in_pieces(run, 0, a.size(),
              [&](Index from, Index end) { found = found && a.segment(from, end - from).allFinite(); });
    return found;
}

// Calls body(j) for every j in [0, n).
template <class Body>
void each(const Run& run, Index n, const Body& body) {
    in_pieces(run, 0, n, [&](Index from, Index end) {
        for (Index j = from; j < end; ++j) body(j);
    });
}

}  // namespace qk
