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

// ---- memory ------------------------------------------------------------------------------------------------------

// Of the L2 cache for what waits in it for a second use. Processors with packs of 512 bits have a megabyte and more.
// sweep_points.
inline constexpr Index l2_bytes = Index{QK_SIMD_BYTES == 64 ? 1024 : 256} << 10;
// A dense output in the softmax keeps less there, because its output passes through as well. bench/run.py dense.
inline constexpr Index output_l2_bytes = Index{256} << 10;

// ---- sweeps of bridges -------------------------------------------------------------------------------------------

// Rows that share one pass over the column sums: with four, the sums cost an eighth of the reads. sweep_stored.
inline constexpr int sweep_rows = 4;
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
