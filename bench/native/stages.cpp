// Where the time of a row reduction goes: each stage of a tile alone, on one thread with the data in cache.
// Printed as JSON, in ns per matrix entry.
//
// This is for profiling: it includes the engine's internal headers, so `perf annotate` shows one stage at a time.
//   stages [dtype=float32|float64] [stage=NAME] [seconds=S]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/row_kernels.hpp"
#include "engine/tiling.hpp"
// The sources of the kernels themselves, so that this program needs no library.
#include "engine/row_scores.cpp"
#include "engine/tile_kernels.cpp"

namespace {

using Clock = std::chrono::steady_clock;
using qk::Index;

inline void keep(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

struct Options {
    std::string dtype, stage;
    double seconds = 0.3;
};

// The best time of one run, in seconds. Samples are short, so that some of them are undisturbed.
double best_seconds(double budget, const std::function<void()>& run) {
    int repeats = 1;
    double best = 1e9, spent = 0;
    while (spent < budget) {
        const auto begin = Clock::now();
        for (int k = 0; k < repeats; ++k) run();
        const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
        spent += elapsed;
        best = std::min(best, elapsed / repeats);
        if (elapsed < 1e-3) repeats *= 2;
    }
    return best;
}

template <class T>
qk::Buffer<T> filled(Index n, double from, double to) {
    qk::Buffer<T> out(n);
    for (Index i = 0; i < n; ++i)
        out[i] = static_cast<T>(from + (to - from) * static_cast<double>(i * 7919 % 1024) / 1024);
    return out;
}

// One tile as the engine cuts it, for d features and k right-hand sides.
template <class T>
struct Tile {
    Index d, k, rows, cols, packs;
    qk::FeatureDims dims;
    qk::RowScoresKernel<T> by_rows;
    qk::Buffer<T> features, panels, row_bias, col_bias, scores, values, out;

    Tile(Index d_, Index k_, bool distance) : d(d_), k(k_) {
        qk::Problem<T> problem;
        problem.n_rows = problem.n_cols = 10000;
        (distance ? problem.distances : problem.dots).push_back({{}, {}, d});
        (distance ? dims.counts.front() : dims.counts.back()) = d;
        const qk::Tiling t = qk::choose_tiling(problem, k);
        by_rows = t.row_by_row ? qk::pick_row_scores(problem, dims, qk::LateSides::none) : nullptr;
        rows = t.block_rows, cols = t.tile_cols;
        packs = qk::round_up(k, qk::SimdTraits<T>::width) / qk::SimdTraits<T>::width;
        features = filled<T>(rows * d, -1, 1);
        panels = filled<T>(cols * d, -1, 1);
        row_bias = filled<T>(rows, 0, 0);
        col_bias = filled<T>(cols, 0, 0);
        scores = filled<T>(rows * cols, -10, 0);
        values = filled<T>(cols * std::max<Index>(packs, 1) * qk::SimdTraits<T>::width, -1, 1);
        out = filled<T>(rows * std::max<Index>(packs, 1) * qk::SimdTraits<T>::width, 0, 0);
    }
    // For points of few dimensions scores come row by row, with the maximum of each row: see row_scores.hpp.
    void score_rows() {
        for (Index r = 0; r < rows; ++r) {
            const qk::RowScores<T> row{features.data() + r * d,       panels.data(), col_bias.data(),
                                       cols / qk::MicroTile<T>::cols, T(1),          row_bias[r]};
            const T top = by_rows(row, scores.data());
            keep(&top);
        }
    }
    void score() {
        qk::score_tile<T>(features.data(), rows, panels.data(), cols / qk::MicroTile<T>::cols, dims, T(1),
                          row_bias.data(), col_bias.data(), scores.data(), cols);
        keep(scores.data());
    }
    void maximum() {
        for (Index r = 0; r < rows; ++r) {
            const T m = qk::row_max(scores.data() + r * cols, cols);
            keep(&m);
        }
    }
    template <int K, bool Store>
    void weigh() {
        for (Index r = 0; r < rows; ++r) {
            // With Store the next call gets weights in place of scores; the time is the same.
            T* s = scores.data() + r * cols;
            const auto sums = qk::weigh_row<qk::ShiftedExp<T>, T, K, false, Store>(
                s, cols, {qk::broadcast(T(1))}, T(1), values.data(), 0, s, nullptr);
            keep(&sums);
        }
    }
    void product() {
        qk::product_tile<T>(scores.data(), cols, rows, cols, values.data(), cols, 0, packs, out.data(),
                            packs * qk::SimdTraits<T>::width);
        keep(out.data());
    }
};

template <class T>
void report(const Options& options, const char* dtype) {
    const char* comma = "";
    std::printf("\"%s\": {", dtype);
    const auto show = [&](const std::string& name, Tile<T>& tile, const std::function<void()>& run) {
        if (!options.stage.empty() && options.stage != name) return;
        const double ns = best_seconds(options.seconds, run) * 1e9;
        std::printf("%s\"%s\": %.4g", comma, name.c_str(), ns / static_cast<double>(tile.rows * tile.cols));
        comma = ", ";
    };
    Tile<T> near(3, 0, true), near_dot(3, 0, false), far(64, 64, true), far_dot(64, 64, false);
    show("score and maximum, distance d=3", near, [&] { near.score_rows(); });
    show("score and maximum, dot d=3", near_dot, [&] { near_dot.score_rows(); });
    show("score distance d=64", far, [&] { far.score(); });
    show("score dot d=64", far_dot, [&] { far_dot.score(); });
    show("row maximum", far, [&] { far.maximum(); });
    show("exp and sum, small tile", near, [&] { near.template weigh<0, false>(); });
    show("exp, sum and one product, small tile", near, [&] { near.template weigh<1, false>(); });
    show("exp, sum and store, large tile", far_dot, [&] { far_dot.template weigh<0, true>(); });
    show("product k=64", far_dot, [&] { far_dot.product(); });
    std::printf("}");
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i], key = word.substr(0, word.find('='));
        const std::string value = word.substr(std::min(word.size(), key.size() + 1));
        if (key == "dtype")
            options.dtype = value;
        else if (key == "stage")
            options.stage = value;
        else if (key == "seconds" && std::atof(value.c_str()) > 0)
            options.seconds = std::atof(value.c_str());
        else
            return std::fprintf(stderr, "stages: cannot use '%s'\n", word.c_str()), 2;
    }
    std::printf("{");
    if (options.dtype != "float64") report<float>(options, "float32");
    if (options.dtype.empty()) std::printf(", ");
    if (options.dtype != "float32") report<double>(options, "float64");
    std::printf("}\n");
}
