// Every number of the engine that was chosen by measuring, with what it trades and the row of bench/native (or of
// bench/run.py) that shows it. None of them changes what is computed but for rounding, and none depends on the number
// of threads where results must not.
#pragma once

#include "qk/simd.hpp"
#include "qk/views.hpp"

namespace qk::tuning {

// ---- tiles (engine/tiling.hpp) -----------------------------------------------------------------------------------

// Up to this many right-hand sides are summed in registers while weights are made; more go through a product of
// matrices once the tile has its weights. Four accumulators beside those of the sum still fit the registers of AVX2.
inline constexpr Index few_values = 4;

// Points of up to this many dimensions are scored a row at a time; with more, blocks of rows reuse the columns.
// log_sum_exp/d:3, sweep_points.
inline constexpr Index row_scores_max_dim = 4;

// From here on scores are matrix work, and tall blocks of rows pay: log_sum_exp/d:64, attention.
inline constexpr Index matrix_work_dim = 16;
// Micro-tiles on top of each other in such a block: its panel of columns is read once for all of them.
inline constexpr Index matrix_micro_tiles = 8;
inline constexpr Index band_micro_tiles = 4;  // of bands: bench/run.py attention, causal

// Rows of other blocks: the tile stays in the L1 cache between the pass that makes scores and that of exp. sweep_dense.
inline constexpr Index flat_block_rows = 12;

// Columns of a tile: 256 of a block, 1024 of a single row of points (work that is done once for each row and tile is
// spread). log_sum_exp/d:3.
inline constexpr Index tile_cols = 256;
inline constexpr Index row_tile_cols = 1024;

// The rows of a matrix: four rows of 8 KB fill the L1 cache, and long runs come faster from memory. sweep_dense.
inline constexpr Index read_rows = 4;
inline constexpr Index read_bytes = 8192;

// A transposed matrix is read down its columns: blocks as tall as several cache lines, in steps of one pack.
// bench/run.py dense.
inline constexpr Index down_rows = 96;
inline constexpr Index down_whole = 16;
// A matrix of this size is taken to be in the caches, where asking for its columns ahead costs more than it saves.
inline constexpr Index cached_bytes = Index{10} << 20;

// A problem that is walked alone is cut into at least this many blocks, so that threads share small ones evenly.
inline constexpr Index blocks_per_problem = 16;

// Work handed out at once, in entries times features: tens of microseconds. Threads that read a matrix keep 1/64 of it at
// a time, at most `read_entries`, since they find in the cache what they have asked for themselves.
inline constexpr Index task_work = Index{1} << 17;
inline constexpr Index read_entries = Index{1} << 16;
inline constexpr Index read_share = 64;

// Few rows and many columns are cut by columns instead. bench/run.py reductions of one row.
inline constexpr Index few_rows = 64;
inline constexpr Index split_cols = Index{1} << 14;

// Waking another thread costs microseconds: below this many operations (of packs) one thread does it all. bench small.
inline constexpr double alone_operations = 2e5;
// What an entry costs beside its features, in operations: exp and sums.
inline constexpr double entry_operations = 20;

// Panels of columns that one task packs.
inline constexpr Index panels_per_task = 64;

// Entries of an array that one task looks at for NaN and infinities, and short rows between two looks at the clock.
// bench/run.py dense, where the check is part of every call.
inline constexpr Index scan_entries = Index{1} << 16;
inline constexpr Index scan_poll_rows = 64;
// Points that are multiplied by a factor of a metric at once, copies included: they stay in the cache.
inline constexpr Index project_rows = 256;

// Shares of a product with a stored symmetric kernel, each with sums of its own: as many whatever the number of threads,
// whose results are then the same. symmetric_times_1.
inline constexpr Index symmetric_parts = 8;

// Rows of probabilities, and eigenvalues of one row, that one task handles: each takes microseconds. bench/run.py simplex.
inline constexpr Index mobility_rows = 64;
inline constexpr Index secular_roots = 16;

// ---- memory ------------------------------------------------------------------------------------------------------

// Of the L1 cache for rows that are read twice in a row. sweep_stored.
inline constexpr Index l1_bytes = Index{32} << 10;
// Of the L2 cache for what waits in it for a second use. Processors with packs of 512 bits have a megabyte and more.
// sweep_points.
inline constexpr Index l2_bytes = Index{QK_SIMD_BYTES == 64 ? 1024 : 256} << 10;
// A dense output in the softmax keeps less there, because its output passes through as well. bench/run.py dense.
inline constexpr Index output_l2_bytes = Index{256} << 10;

// ---- sweeps of bridges -------------------------------------------------------------------------------------------

// Rows that share one pass over the column sums: with four, the sums cost an eighth of the reads. sweep_dense.
inline constexpr int sweep_rows = 4;
// The same of stored rows: eight at a time come faster from memory than four, and the logarithms of their sums are one
// pack; they want 32 registers. sweep_stored, and bench/gate.py, 500 bridges.
inline constexpr int stored_rows = QK_SIMD_BYTES == 64 ? 8 : 4;
// Sums over more columns go on in double, as do column sums of more rows: float32 keeps its digits for any size.
inline constexpr Index sweep_chunk = 1024;
inline constexpr int flush_rows = 128;
// Rows are cut among threads in multiples of this.
inline constexpr Index share_rows = 12;

// Looking at the clock takes as long as four short stored rows, and long rows take their time. sweep_stored at N = 200.
inline constexpr Index poll_rows = 64;
inline constexpr Index poll_entries = Index{1} << 21;

// Stored entries are taken anew once a potential has moved this far: exp of it times entries stays where sums are exact.
template <class Entry, class T>
inline constexpr double stored_reach = sizeof(Entry) < sizeof(T) ? 20.0
                                       : sizeof(T) == 4          ? 8.0
                                                                 : 60.0;

// What rounding the entries does to the sums is measured, by a visit, at potentials from which the next ones differ by at
// most this much: further on it would be another error. bench/gate.py, bridge dense N=2000 float64.
inline constexpr double measured_reach = 0.1;

// The final check of dense scores adds so many rows, and so many columns, in double precision before their sums are added to
// sums of their own: what rounding does to either stays below what the check allows for (rounding_slack in
// python/qkcore/_bridge_check.py). Shorter runs cost time. bench/gate.py, bridge dense.
inline constexpr Index checked_rows = 64;
inline constexpr Index checked_columns = 512;

// ---- Newton's method for bridges (bridge/newton_system.cpp) ------------------------------------------------------

// Conjugate gradients where they converge before they have cost as much as a factorisation, which then takes over, and
// stays: systems get harder towards the solution. Up to so many columns. bench/run.py hard.
inline constexpr Index most_factored = 1024;
// And for so few columns without asking. bench/run.py bridges, many problems.
inline constexpr Index always_factored = 64;
inline constexpr Index fewest_steps = 10, most_steps = 500;
// Entries that are kept: 12 bytes each.
inline constexpr Index most_entries = Index{1} << 22;
// Beside products of the kernel, kept entries must be this rare to be worth it: they lie in no order, and one thread
// multiplies with them. bench/run.py bridges, eps=0.001.
inline constexpr Index sparse = 24;
// They are counted in so many rows first, and in one of gather_rows at most: what is kept of too many is lost work. After
// as many rows that were kept it is asked again. bench/gate.py, bridge dense eps=0.005.
inline constexpr Index gather_sample = 128, gather_rows = 16;
// Multiplications of a factorisation that take as long as an entry of a visit: of one computed on the fly, by which work
// is counted, and of one that is stored or kept, by which methods are chosen. bench/run.py hard.
inline constexpr double per_computed_entry = 16, per_stored_entry = 1.5, per_kept_entry = 3;
// Potentials may move by this much before entries that were too small to be kept can matter.
inline constexpr double reach = 3;
// Of the row; entries below it are nothing even to the weakest connection.
inline constexpr double least_direct = 1e-18;

// ---- particles ---------------------------------------------------------------------------------------------------

// Particles of up to this many dimensions keep scores, weights and sums in registers. velocity/d:2.
inline constexpr Index cloud_max_dim = 4;
// Packs of a strip: enough independent chains to hide the latency of exp2, few enough for the registers.
inline constexpr int cloud_packs = 4;
// Strips that are summed in T before they are added in double.
inline constexpr Index cloud_chunk = 64;
// Rows of a task in few dimensions, and of a block in many. velocity/d:16.
inline constexpr Index cloud_rows = 32;
inline constexpr Index particle_block_rows = 48;
// Rows of so many particles are worth a look at the clock each.
inline constexpr Index cloud_poll = 4096;
// Scores (in units of log 2) up to this size, summed over any number of particles, stay in the range of the type.
template <class T>
inline constexpr double safe_exponent = sizeof(T) == 4 ? 80.0 : 900.0;

// ---- gradients ---------------------------------------------------------------------------------------------------

// A tile of weights and one of their changes stay in the L2 cache between their uses.
inline constexpr Index pull_rows = 96;
inline constexpr Index pull_cols = 256;

// ---- Gaussian laws (fields) ----------------------------------------------------------------------------------------

// Laws of this many dimensions and more go alone through products of whole matrices, and not in the lanes of packs. A
// full pack of lanes is 1.4 (L2) to 4 times as slow in 32 dimensions, and twice as fast in 24. It does not depend on how
// many laws there are (one alone gains from 12 dimensions on): each has the same bits in any batch. bench/run.py
// gaussian, d = 32.
inline constexpr Index whole_matrix_dimensions = 32;
// Rows of a task of such a product: four micro-tiles, with which two threads share 100 rows well. A panel of the right
// factor, of this depth and two packs wide, stays in the L1 cache for all of them. bench/run.py gaussian, d = 100, 300.
inline constexpr Index product_rows = 48;
inline constexpr Index product_depth = 320;
// With fewer rows one thread multiplies: a product takes 25 microseconds or less, as long as waking another.
inline constexpr Index product_threads = 96;

// From here on OpenBLAS uses threads of its own for eigenvalues, and calls from several threads wait for each other: laws
// of Sinkhorn attention follow one another then. bench/run.py gaussian sinkhorn, 8 laws, d = 64.
inline constexpr Index library_threads = 64;

}  // namespace qk::tuning
