// Argument checks that all launches share.
#pragma once

#include "platform.hpp"
#include "qk_cuda/api.hpp"

namespace qk::cuda {

inline Outcome bad(const char* what) { return {Status::bad_argument, 0, what}; }

template <class T, class In>
Outcome check(const Scores<T, In>& s) {
    if (s.n_rows < 0 || s.n_cols < 0) return bad("scores: wanted sizes of at least 0, got a negative one");
    if (s.n_rows > Index{1} << 36 || s.n_cols > Index{1} << 36)
        return {Status::too_large, 0, "scores: more than 2^36 rows or columns"};
    if (s.n_features < 0 || s.n_features > max_terms || s.n_dense < 0 || s.n_dense > max_terms ||
        s.n_masks < 0 || s.n_masks > max_terms)
        return bad("scores: more terms or masks than max_terms");
    if (s.n_row_bias < 0 || s.n_row_bias > max_biases || s.n_col_bias < 0 || s.n_col_bias > max_biases)
        return bad("scores: more biases than max_biases");
    const bool entries = s.n_rows > 0 && s.n_cols > 0;
    for (int t = 0; t < s.n_features; ++t) {
        if (s.features[t].dim < 0)
            return bad("scores: wanted feature dimensions of at least 0, got a negative one");
        if (entries && s.features[t].dim > 0 &&
            (s.features[t].rows.data == nullptr || s.features[t].cols.data == nullptr))
            return bad("scores: wanted arrays of features, got a null pointer");
    }
    for (int t = 0; entries && t < s.n_dense; ++t)
        if (s.dense[t].values.data == nullptr)
            return bad("scores: wanted arrays of dense values, got a null pointer");
    for (int t = 0; entries && t < s.n_row_bias; ++t)
        if (s.row_bias[t] == nullptr) return bad("scores: wanted arrays of row biases, got a null pointer");
    for (int t = 0; entries && t < s.n_col_bias; ++t)
        if (s.col_bias[t] == nullptr)
            return bad("scores: wanted arrays of column biases, got a null pointer");
    for (int t = 0; entries && t < s.n_masks; ++t)
        if (s.masks[t].data == nullptr) return bad("scores: wanted arrays of masks, got a null pointer");
    return {};
}

inline Outcome check_room(Workspace room, std::size_t needed) {
    if (room.bytes < needed || (needed > 0 && room.data == nullptr))
        return {Status::too_little_room, 0, "workspace: smaller than workspace_bytes() of the task"};
    return {};
}

// Cuts a workspace into arrays, each aligned to 256 bytes.
class Cutter {
public:
    explicit Cutter(void* base) : base_(static_cast<unsigned char*>(base)) {}

    template <class T>
    T* take(Index n) {
        unsigned char* const at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (static_cast<std::size_t>(n) * sizeof(T) + 255) / 256 * 256;
        return reinterpret_cast<T*>(at);
    }
    std::size_t used() const { return used_; }

private:
    unsigned char* base_;
    std::size_t used_ = 0;
};

}  // namespace qk::cuda
