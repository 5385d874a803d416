// Every number of the engine that was chosen by measuring, with what it trades and the row of bench/native (or of
// bench/run.py) that shows it. These numbers change only the rounding of results, and none depends on the number
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

// From this many dimensions on, scores are mostly matrix work, and tall blocks of rows are faster: log_sum_exp/d:64,
// attention.
inline constexpr Index matrix_work_dim = 16;
// The number of micro-tiles one below the other in such a block: its panel of columns is read once for all of them.
inline constexpr Index matrix_micro_tiles = 8;
inline constexpr Index band_micro_tiles = 4;  // the same in a band: bench/run.py attention, causal

// The rows of other blocks. Their tile stays in the L1 cache from the pass that makes scores to that of exp.
// sweep_dense.
inline constexpr Index flat_block_rows = 12;

// The columns of a tile: 256 for a block, 1024 for a single row of points, where the work done once for each row and
// tile is then spread over more entries. log_sum_exp/d:3.
inline constexpr Index tile_cols = 256;
inline constexpr Index row_tile_cols = 1024;

// Tiles of a matrix read along its rows: four rows of 8 KB fill the L1 cache, and memory delivers long runs faster.
// sweep_dense.
inline constexpr Index read_rows = 4;
inline constexpr Index read_bytes = 8192;

// A transposed matrix is read down its columns, in blocks as tall as several cache lines and a multiple of a pack.
// bench/run.py dense.
inline constexpr Index down_rows = 96;
inline constexpr Index down_whole = 16;
// A matrix up to this size is assumed to be in the caches, where prefetching its columns costs more than it saves.
inline constexpr Index cached_bytes = Index{10} << 20;

// A problem that is walked alone is cut into at least this many blocks, so that threads share small ones evenly.
inline constexpr Index blocks_per_problem = 16;

// The work that is handed out at once, in entries times features: tens of microseconds. Threads that read a matrix take
// 1/64 of it at a time, at most `read_entries`, because each then finds in its cache what it has prefetched itself.
inline constexpr Index task_work = Index{1} << 17;
inline constexpr Index read_entries = Index{1} << 16;
inline constexpr Index read_share = 64;

// Problems with few rows and many columns are cut by columns instead. bench/run.py reductions of one row.
inline constexpr Index few_rows = 64;
inline constexpr Index split_cols = Index{1} << 14;

// Waking another thread costs microseconds: below this many operations (on packs) one thread does all the work. bench
// small.
inline constexpr double alone_operations = 2e5;
// The operations of an entry in addition to those of its features: exp and sums.
inline constexpr double entry_operations = 20;

// Panels of columns that one task packs.
inline constexpr Index panels_per_task = 64;

// The entries of an array that one task checks for NaN and infinities, and the number of short rows between two checks
// of the clock. bench/run.py dense, where the check is part of every call.
inline constexpr Index scan_entries = Index{1} << 16;
inline constexpr Index scan_poll_rows = 64;
// The number of points that are multiplied by a factor of a metric at once; with their copies they stay in the cache.
inline constexpr Index project_rows = 256;

// The number of shares of a product with a stored symmetric kernel, each with sums of its own. It does not depend on
// the number of threads, so results do not either. symmetric_times_1.
inline constexpr Index symmetric_parts = 8;

// The rows of probabilities, and the eigenvalues of one row, that one task handles: each takes microseconds.
// bench/run.py simplex.
inline constexpr Index mobility_rows = 64;
inline constexpr Index secular_roots = 16;

// ---- memory ------------------------------------------------------------------------------------------------------

// The part of the L1 cache for rows that are read twice in succession. sweep_stored.
inline constexpr Index l1_bytes = Index{32} << 10;
// The part of the L2 cache for data that wait in it for a second use. Processors with packs of 512 bits have a megabyte
// and more. sweep_points.
inline constexpr Index l2_bytes = Index{QK_SIMD_BYTES == 64 ? 1024 : 256} << 10;
// The softmax as dense output keeps less there, because its output passes through the cache as well. bench/run.py
// dense.
inline constexpr Index output_l2_bytes = Index{256} << 10;

// ---- sweeps of bridges -------------------------------------------------------------------------------------------

// The rows that share one pass over the column sums: with four, the sums cost an eighth of the reads. sweep_dense.
inline constexpr int sweep_rows = 4;
// The same for stored rows. Memory delivers eight at a time faster than four, and one pack takes the logarithms of eight
// sums, but eight rows need 32 registers. sweep_stored, and bench/gate.py, 500 bridges.
inline constexpr int stored_rows = QK_SIMD_BYTES == 64 ? 8 : 4;
// Sums over more columns, and column sums over more rows, continue in double: float32 keeps its digits at any size.
inline constexpr Index sweep_chunk = 1024;
inline constexpr int flush_rows = 128;
// The rows of a thread are a multiple of this.
inline constexpr Index share_rows = 12;

// The rows and entries between two checks of the clock, which takes as long as four short stored rows. sweep_stored at
// N = 200.
inline constexpr Index poll_rows = 64;
inline constexpr Index poll_entries = Index{1} << 21;

// Stored entries are computed and stored again once a potential has moved farther than this. Entries times the
// exponential of a longer way would leave the range in which sums are accurate.
template <class Entry, class T>
inline constexpr double stored_reach = sizeof(Entry) < sizeof(T) ? 20.0
                                       : sizeof(T) == 4          ? 8.0
                                                                 : 60.0;

// A visit that measures what the rounding of stored entries does to the sums is made only if the next potentials differ
// by at most this much, up to a constant, from those at which it is measured: farther away the effect is a different
// one. bench/gate.py, bridge dense N=2000 float64.
inline constexpr double measured_reach = 0.1;

// The final check of dense scores adds entries in runs of this many rows (for column sums) or columns (for row sums), and
// then adds up the sums of the runs. The rounding errors stay below what the check allows for (rounding_slack in
// python/qkcore/_bridge_check.py). Shorter runs take longer. bench/gate.py, bridge dense.
inline constexpr Index checked_rows = 64;
inline constexpr Index checked_columns = 512;

// ---- Newton's method for bridges (bridge/newton_system.cpp) ------------------------------------------------------

// Conjugate gradients are used as long as they converge before they have cost as much as a factorisation. Otherwise the
// factorisation is used from then on, because systems get harder towards the solution, unless there are more columns
// than this. bench/run.py hard.
inline constexpr Index most_factored = 1024;
// With so few columns the factorisation is always used. bench/run.py bridges, many problems.
inline constexpr Index always_factored = 64;
inline constexpr Index fewest_steps = 10, most_steps = 500;
// The largest number of entries that are kept, with 12 bytes each.
inline constexpr Index most_entries = Index{1} << 22;
// Kept entries must be this rare to be faster than products with the kernel, because they are in no order, and one
// thread multiplies with them. bench/run.py bridges, eps=0.001.
inline constexpr Index sparse = 24;
// Before entries are kept, they are counted in about gather_sample rows, but at most in one of gather_rows rows: if there
// are too many, keeping the first of them is wasted work. While they are kept, their number is checked after every
// gather_rows rows. bench/gate.py, bridge dense eps=0.005.
inline constexpr Index gather_sample = 128, gather_rows = 16;
// Multiplications of a factorisation that take as long as an entry of a visit: of one computed on the fly, by which work
// is counted, and of one that is stored or kept, by which methods are chosen. bench/run.py hard.
inline constexpr double per_computed_entry = 16, per_stored_entry = 1.5, per_kept_entry = 3;
// The distance by which potentials may move before entries that were too small to be kept can matter.
inline constexpr double reach = 3;
// Entries below this share of their row do not matter even for the weakest connection.
inline constexpr double least_direct = 1e-18;

// ---- particles ---------------------------------------------------------------------------------------------------

// Particles of up to this many dimensions keep scores, weights and sums in registers. velocity/d:2.
inline constexpr Index cloud_max_dim = 4;
// The packs of a strip: enough independent chains to hide the latency of exp2, few enough for the registers.
inline constexpr int cloud_packs = 4;
// The number of strips that are summed in T before they are added in double.
inline constexpr Index cloud_chunk = 64;
// The rows of a task in few dimensions, and of a block in many. velocity/d:16.
inline constexpr Index cloud_rows = 32;
inline constexpr Index particle_block_rows = 48;
// With so many particles the clock is checked after every row.
inline constexpr Index cloud_poll = 4096;
// Weights of scores (in units of log 2) up to this size stay in the range of the type, summed over any number of
// particles.
template <class T>
inline constexpr double safe_exponent = sizeof(T) == 4 ? 80.0 : 900.0;

// ---- gradients ---------------------------------------------------------------------------------------------------

// A tile of weights and one of their changes stay in the L2 cache between their uses.
inline constexpr Index pull_rows = 96;
inline constexpr Index pull_cols = 256;

// ---- Gaussian laws (fields) ----------------------------------------------------------------------------------------

// Laws in this many dimensions and more are computed alone, by products of whole matrices, and not in the lanes of
// packs. A full pack of lanes is 1.4 (L2) to 4 times as slow in 32 dimensions, and twice as fast in 24. The limit does
// not depend on the number of laws, so that each has the same bits in any batch (a single law would gain from 12
// dimensions on). bench/run.py gaussian, d = 32.
inline constexpr Index whole_matrix_dimensions = 32;
// The rows of a task of such a product: four micro-tiles, so that two threads share 100 rows well. A panel of the right
// factor, of this depth and two packs wide, stays in the L1 cache for all of them. bench/run.py gaussian, d = 100, 300.
inline constexpr Index product_rows = 48;
inline constexpr Index product_depth = 320;
// With fewer rows one thread multiplies, because a product takes at most 25 microseconds, as long as waking another
// thread.
inline constexpr Index product_threads = 96;

// From this dimension on OpenBLAS uses threads of its own for eigenvalues, and calls from several threads wait for each
// other. Laws of Sinkhorn attention then follow one another. bench/run.py gaussian sinkhorn, 8 laws, d = 64.
inline constexpr Index library_threads = 64;

}  // namespace qk::tuning
