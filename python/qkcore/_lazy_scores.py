"""The lazy score matrix: one normal form for every sum of scores, masks and shifts included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._host import HOST
from ._rounding import EARLY, LATE, REFERENCE
from ._terms import UNBOUNDED, Offsets, Terms

if TYPE_CHECKING:
    from ._backend import Backend

Real = npt.NDArray[np.floating[Any]]


class Scores:
    """A lazy score matrix of shape (..., N, M). Build one with the functions of ``qk.scores``.

    Every sum of scores has the same normal form: dot terms + distance terms + dense terms + row
    shift + column shift, masked to -inf. So sums, masks and shifts compute nothing until the scores are
    reduced. Scores of arrays on a device compute there, and return arrays of the caller's library.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> s = qk.scores.dot(X).causal()
    >>> s.to_numpy()
    array([[  1., -inf, -inf],
           [  0.,   4., -inf],
           [  1.,   2.,   2.]])
    """

    __slots__ = (
        "_described",
        "_holed",
        "as_given",
        "backend",
        "batch",
        "bound",
        "dtype",
        "n_cols",
        "n_rows",
        "terms",
    )

    # NumPy must not loop over scores as if they were a sequence: array + s calls __radd__ instead.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    def __init__(
        self,
        dtype: np.dtype[Any],
        batch: tuple[int, ...],
        n_rows: int,
        n_cols: int,
        terms: Terms,
        *,
        bound: float,
        backend: Backend = HOST,
    ) -> None:
        # A sum that overflowed to -inf would look like a mask.
        _checks.no_overflow("scores", bound, dtype)
        if terms.offsets is not None and batch:
            raise ValueError(
                f"ragged: wanted 2-D scores, got batch axes {batch}; ragged blocks are the batch: "
                "concatenate the problems along the rows"
            )
        self.dtype = dtype
        self.batch = batch
        self.n_rows = n_rows
        self.n_cols = n_cols
        self.terms = terms
        self.bound = bound
        """an upper bound of the magnitude of all finite scores"""
        self.backend = backend
        self._described = backend.describe(self)
        self._holed: bool | None = None
        self.as_given = False
        """whether the points in the terms are the caller's, not multiplied by a matrix W"""

    @property
    def holed(self) -> bool:
        """Whether -inf in an array or a shift masks an entry; the answer is kept."""
        if self._holed is None:
            self._holed = any(map(self.backend.has_minus_inf, self.terms.numbers))
        return self._holed

    @holed.setter
    def holed(self, known: bool) -> None:
        self._holed = known

    @property
    def _spec(self) -> tuple[Any, ...]:
        """The tuple that the CPU engine reads."""
        if not self.backend.host_arrays:
            raise TypeError(
                f"scores: wanted scores of CPU arrays here, got {self!r}; copy the arrays to the CPU "
                "(docs/cuda.md lists what works on a device)"
            )
        return self._described

    def _with(
        self,
        terms: Terms,
        *,
        batch: tuple[int, ...] | None = None,
        shape: tuple[int, int] | None = None,
        bound: float | None = None,
    ) -> Scores:
        """Scores of the same arrays and dtype with other terms."""
        n_rows, n_cols = (self.n_rows, self.n_cols) if shape is None else shape
        out = Scores(
            self.dtype,
            self.batch if batch is None else batch,
            n_rows,
            n_cols,
            terms,
            bound=self.bound if bound is None else bound,
            backend=self.backend,
        )
        out.as_given = self.as_given
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return (*self.batch, self.n_rows, self.n_cols)

    @property
    def ndim(self) -> int:
        """The number of axes: two, plus the number of batch axes."""
        return len(self.batch) + 2

    @property
    def device(self) -> str:
        """Where the arrays are: "cpu", or e.g. "cuda:0"."""
        return self.backend.place

    @property
    def T(self) -> Scores:
        """The transposed scores, lazily."""
        return self._with(
            self.terms.transposed(self.backend.swap), shape=(self.n_cols, self.n_rows)
        )

    @property
    def symmetric(self) -> bool:
        """Whether s_ij = s_ji by construction (False if it is only not known)."""
        same, t = self.backend.same, self.terms
        n_shifts = len(t.row_bias)
        return (
            self.n_rows == self.n_cols
            and t.band[0] == -t.band[1]
            and all(any(same(x, v) and same(y, u) and b == c for u, v, c in t.dots) for x, y, b in t.dots)
            and all(same(x, y) for x, y, *_ in t.distances)
            and not t.masks
            and all(same(z, self.backend.swap(z)) for z, _ in t.dense)
            and n_shifts == len(t.col_bias)
            and all(same(r, c) for r, c in zip(t.row_bias, t.col_bias, strict=True))
            and t.rounding.same_stages(n_shifts)
        )  # fmt: skip

    def rows(self, start: int, stop: int) -> Scores:
        """The scores of rows start to stop (exclusive), lazily; not for ragged scores."""
        first, last = _checks.integer("start", start), _checks.integer("stop", stop)
        if not 0 <= first < last <= self.n_rows:
            raise ValueError(
                f"start, stop: wanted 0 <= start < stop <= {self.n_rows}, got {start}, {stop}"
            )
        if self.terms.offsets is not None:
            raise ValueError(
                "rows: wanted scores that are not ragged; take the rows before ragged()"
            )
        cut = self.backend.cut
        low, high = self.terms.band
        terms = self.terms.map(
            x=lambda x: cut(x, -2, first, last),
            z=lambda z: cut(z, -2, first, last),
            r=lambda r: cut(r, -1, first, last),
        )._replace(
            band=(
                low if low <= -UNBOUNDED else max(low + first, -UNBOUNDED),
                high if high >= UNBOUNDED else min(high + first, UNBOUNDED),
            )
        )
        return self._with(terms, shape=(last - first, self.n_cols))

    def columns(self, at: npt.NDArray[np.intp]) -> Scores:
        """The scores of some columns, lazily; not with causal masks, windows or ragged blocks."""
        if self.terms.banded or self.terms.offsets is not None:
            raise ValueError(
                "columns: wanted scores without causal masks, windows and ragged blocks, which depend on "
                "the numbers of the columns; mask the chosen columns afterwards, with masked()"
            )
        take = self.backend.taken
        terms = self.terms.map(
            y=lambda y: take(y, at, -2), z=lambda z: take(z, at, -1), c=lambda c: take(c, at, -1)
        )
        return self._with(terms, shape=(self.n_rows, len(at)))

    def _problem(self, k: int) -> Scores:
        """Problem k of a batch (in the order of its flattened axes), or block k of ragged scores, lazily."""
        if self.terms.offsets is None:
            at = tuple(int(i) for i in np.unravel_index(k, self.batch))
            rows = cols = slice(None)
        else:
            at = ()
            rows, cols = (slice(*cuts[k : k + 2].tolist()) for cuts in self.terms.offsets)
        one, every = self.backend.one, slice(None)
        terms = self.terms.map(
            x=lambda x: one(x, at, (rows, every)),
            y=lambda y: one(y, at, (cols, every)),
            z=lambda z: one(z, at, (rows, cols)),
            r=lambda r: one(r, at, (rows,)),
            c=lambda c: one(c, at, (cols,)),
        )._replace(offsets=None)
        n_rows, n_cols = (
            len(range(*cut.indices(n))) for cut, n in ((rows, self.n_rows), (cols, self.n_cols))
        )
        return self._with(terms, batch=(), shape=(n_rows, n_cols))

    # ---- problems of a batch ------------------------------------------------------------------

    def __bool__(self) -> bool:  # scores are true, even with no problems
        return True

    def __len__(self) -> int:
        """The length of the first batch axis, or the number of ragged blocks."""
        if self.terms.offsets is not None:
            return len(self.terms.offsets[0]) - 1
        if not self.batch:
            raise TypeError("len: wanted scores with batch axes, got one problem; see shape")
        return self.batch[0]

    def __getitem__(self, index: Any) -> Scores:
        """Some problems of a batch, by integers and slices for its leading axes: ``s[2]``, ``s[0, :3]``.

        Block k of ragged scores is ``s[k]``. For rows, use :meth:`rows`.
        """
        if self.terms.offsets is not None:
            return self._problem(_checks.index("index", index, len(self)))
        if not self.batch:
            raise TypeError(
                f"index: wanted scores with batch axes, got one problem of shape {self.shape}; use "
                "rows(first, last) for rows, and to_numpy() for entries"
            )
        try:
            batch = np.broadcast_to(np.int8(0), self.batch)[index].shape
        except IndexError:
            raise IndexError(
                f"index: wanted problems of the batch {self.batch}, got {index!r}"
            ) from None
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(part, slice) or hasattr(part, "__index__") for part in parts):
            raise TypeError(f"index: wanted integers and slices for batch axes, got {index!r}")
        full = parts + (slice(None),) * (len(self.batch) - len(parts))

        def taken(core: int) -> Any:
            return lambda array: self.backend.indexed(array, full, core)

        terms = self.terms.map(x=taken(2), y=taken(2), z=taken(2), r=taken(1), c=taken(1))
        return self._with(terms, batch=batch)

    def __iter__(self) -> Iterator[Scores]:
        return (self[k] for k in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return computed("scores", self.to_numpy(), dtype, copy)

    # ---- algebra ------------------------------------------------------------------------------

    def __add__(self, other: object) -> Scores:
        """Logit sum: the product of experts (DAC A.3). Shapes broadcast over batch axes."""
        if not isinstance(other, Scores):
            array = self._array_term("s + array", other)
            if array is None:
                return NotImplemented
            other = array
        self.backend.joined(self, other)
        if other.dtype != self.dtype:
            raise TypeError(
                f"s + t: wanted scores of one dtype, got {self.dtype} and {other.dtype}; "
                "convert the data of one of them"
            )
        if (other.n_rows, other.n_cols) != (self.n_rows, self.n_cols):
            raise ValueError(
                f"s + t: wanted equal last two axes, got {self.shape} and {other.shape}; "
                "experts score the same pairs"
            )
        return self._with(
            self.terms.joined(other.terms, self._common_offsets(other)),
            batch=_checks.broadcast("s + t", self.batch, other.batch),
            bound=self.bound + other.bound,
        )

    def _common_offsets(self, other: Scores) -> Offsets | None:
        """The ragged blocks of a sum.

        A band counts from the corner of each block, so scores that already have one cannot become ragged.
        """
        mine, theirs = self.terms.offsets, other.terms.offsets
        if mine is None or theirs is None:
            whole, offsets = (self, theirs) if mine is None else (other, mine)
            if offsets is not None and whole.terms.banded:
                raise ValueError(
                    "s + t: wanted causal masks and windows applied after ragged(), got the sum of ragged "
                    "scores and of masked scores that are not ragged; call ragged() before masking, on "
                    "each or on the sum"
                )
            return offsets
        if not all(map(np.array_equal, mine, theirs)):
            raise ValueError(
                "s + t: wanted the same ragged blocks, got different offsets; "
                "call ragged() once, on the sum"
            )
        return mine

    def __mul__(self, factor: object) -> Scores:
        """Scores times a number other than 0 (an inverse temperature). Masks stay masks.

        A negative number turns the closest points into the farthest. It is refused if arrays mask entries by
        -inf, because these would become +inf.
        """
        if isinstance(factor, (Scores, np.ndarray)):
            return NotImplemented
        c = _checks.number("factor", factor)
        if c == 0:
            raise ValueError(
                f"factor: wanted a number other than 0, got {c}; leave the term out instead"
            )
        if c < 0 and self.holed:
            raise ValueError(
                f"factor: wanted a number > 0 for scores in which -inf masks entries, got {c:g}; mask them "
                "by masked() instead, which stays a mask under a change of sign"
            )
        # This is checked before the shifts are multiplied, because the products must not overflow.
        _checks.no_overflow("scores", abs(c) * self.bound, self.dtype)
        _checks.representable("factor", abs(c), self.dtype)

        def scaled(b: float) -> float:
            _checks.representable("factor * beta", abs(c * b), self.dtype)
            return c * b

        return self._with(
            self.terms.scaled(scaled, lambda r: self.backend.scaled(r, c)),
            bound=abs(c) * self.bound,
        )

    __rmul__ = __mul__

    def __truediv__(self, temperature: object) -> Scores:
        """Scores over a temperature."""
        number = _checks.number("temperature", temperature)
        if number == 0:
            raise ValueError(f"temperature: wanted a number other than 0, got {number}")
        return self * (1.0 / number)

    def __neg__(self) -> Scores:
        """The scores times -1, with the same limits as ``*``."""
        return self * -1.0

    def __sub__(self, other: object) -> Scores:
        """The logarithm of a quotient of kernels: s + (-t)."""
        if isinstance(other, Scores):
            return self + (-other)
        array = self._array_term("s - array", other)
        return NotImplemented if array is None else self + (-array)

    def __rsub__(self, other: object) -> Scores:
        array = self._array_term("array - s", other)
        return NotImplemented if array is None else array + (-self)

    def __radd__(self, other: object) -> Scores:
        array = self._array_term("array + s", other)
        return NotImplemented if array is None else array + self

    def _array_term(self, what: str, value: object) -> Scores | None:
        """An array (..., N, M) that is added to scores, as a dense term; None if it is not an array."""
        if isinstance(value, (int, float)):
            raise TypeError(
                f"{what}: wanted scores or an array (..., N, M), got {value!r}; a constant cancels in every "
                "softmax and bridge: leave it out, or shift the rows"
            )
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return None
        if len(value.shape) < 2:
            raise ValueError(
                f"{what}: wanted an array (..., N, M), got shape {tuple(value.shape)}; shift(rows=...) or "
                "shift(columns=...) adds vectors"
            )
        from .scores import dense

        array: Any = value
        return dense(array)

    # ---- masks and shifts ---------------------------------------------------------------------

    def causal(self, offset: int = 0) -> Scores:
        """Keeps key j for row i when ``j <= i + offset``; the rest is -inf."""
        return self._band_limited(-UNBOUNDED, _checks.integer("offset", offset, any_size=True))

    def window(self, left: int | None, right: int | None) -> Scores:
        """Keeps ``i - left <= j <= i + right``; None leaves that side open."""
        low = -UNBOUNDED if left is None else -_checks.integer("left", left, any_size=True)
        high = UNBOUNDED if right is None else _checks.integer("right", right, any_size=True)
        if low > high:
            raise ValueError(
                f"left, right: wanted a window with -left <= right, got left={left}, right={right};"
                " it would mask everything"
            )
        return self._band_limited(low, high)

    def _band_limited(self, low: int, high: int) -> Scores:
        # Clamped so that sums of indices cannot overflow 64 bits.
        low, high = min(max(low, -UNBOUNDED), UNBOUNDED), max(min(high, UNBOUNDED), -UNBOUNDED)
        band = self.terms.band
        return self._with(self.terms._replace(band=(max(low, band[0]), min(high, band[1]))))

    def masked(self, M: npt.ArrayLike) -> Scores:
        """Keeps the entries where the boolean array M (..., N, M) is True."""
        mask = self.backend.boolean("M", M, (self.n_rows, self.n_cols))
        batch = _checks.broadcast("M", self.batch, mask.shape[:-2])
        return self._with(self.terms._replace(masks=(*self.terms.masks, mask)), batch=batch)

    def key_padding(self, keep: npt.ArrayLike) -> Scores:
        """Keeps the columns where the boolean array ``keep`` (..., M) is True."""
        mask = self.backend.boolean("keep", keep, (self.n_cols,))
        batch = _checks.broadcast("keep", self.batch, mask.shape[:-1])
        terms = self.backend.padding(self.terms, mask, self.dtype, self.n_rows)
        return self._with(terms, batch=batch)

    def shift(
        self, rows: npt.ArrayLike | None = None, columns: npt.ArrayLike | None = None
    ) -> Scores:
        """Adds r_i to row i and c_j to column j (arrays (..., N) and (..., M)); -inf masks."""
        return self._shift(rows, columns, ("rows", "columns"))

    def _coupled(self, f: npt.ArrayLike | None, g: npt.ArrayLike | None) -> Scores:
        """f_i + s_ij + g_j, the logarithm of a coupling.

        The potentials are about as large as the scores. They are added to the rounded score one after the
        other, because the first one cancels most of it, and the second sum then has a small rounding error.
        """
        return self._shift(f, g, ("f", "g"), REFERENCE)

    def _with_potentials(self, f: Real, g: Real) -> Scores:
        """Like :meth:`_coupled`, without checks, for potentials in NumPy arrays of the scores' dtype."""
        stage = LATE if self.terms.rounding.late else REFERENCE
        terms = self.terms.shifted(1, (f,), stage).shifted(0, (g,), stage)
        return self._with(terms)

    def _shift(
        self,
        rows: npt.ArrayLike | None,
        columns: npt.ArrayLike | None,
        names: tuple[str, str],
        stage: int = EARLY,
    ) -> Scores:
        sides = [
            (axis, name, value, length)
            for axis, name, value, length in (
                (1, names[0], rows, self.n_rows),
                (0, names[1], columns, self.n_cols),
            )
            if value is not None
        ]
        found = self.backend.vectors(self.dtype, self.batch, *(side[1:] for side in sides))
        batch, bound, terms = self.batch, self.bound, self.terms
        # Normalised scores are small where they matter, so further shifts are added after the normalisation.
        stage = LATE if terms.rounding.late else stage
        for (axis, name, _, _), (shift, largest) in zip(sides, found, strict=True):
            bound += largest
            batch = _checks.broadcast(name, batch, shift.shape[:-1])
            terms = terms.shifted(axis, (shift,), stage)
        return self._with(terms, batch=batch, bound=bound)

    def normalized(self, shifts: tuple[Any, ...], *axes: int) -> Scores:
        """Adds shifts of the rows (axis 1), the columns (axis 0) or both to the rounded scores.

        The shifts are minus a maximum, and then minus the rest of the normaliser. They do not make scores
        larger, so ``bound`` stays.
        """
        # If there are late shifts already, the scores are small, and this maximum comes after those shifts.
        stages = (LATE if self.terms.rounding.late else REFERENCE, LATE)[: len(shifts)]
        terms = self.terms
        for axis in axes:
            terms = terms.shifted(axis, shifts, *stages)
        return self._with(terms)

    def ragged(
        self, row_offsets: npt.ArrayLike, column_offsets: npt.ArrayLike | None = None
    ) -> Scores:
        """Many problems of different sizes as one: block-diagonal scores, -inf outside the blocks.

        Block b has the rows ``row_offsets[b]:row_offsets[b+1]`` and the same range of columns, or the range
        given by ``column_offsets``. Causal masks and windows count from the corner of each block.
        """
        if self.terms.offsets is not None:
            raise ValueError("ragged: these scores are ragged already; call it once")
        rows = _checks.offsets("row_offsets", row_offsets, self.n_rows)
        if column_offsets is None:
            if self.n_cols != self.n_rows:
                raise ValueError(
                    f"column_offsets: wanted for scores of shape {self.shape}, got None; "
                    "only square scores can share row_offsets"
                )
            cols = rows
        else:
            cols = _checks.offsets("column_offsets", column_offsets, self.n_cols)
        if len(rows) != len(cols):
            raise ValueError(
                f"column_offsets: wanted {len(rows)} offsets like row_offsets, got {len(cols)}; "
                "every block has rows and columns"
            )
        return self._with(self.terms._replace(offsets=(rows, cols)))

    # ---- reductions ---------------------------------------------------------------------------

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The scores as a NumPy array; masked entries are -inf. From a device the result is copied."""
        b = self.backend
        out: Real = b.to_host(b.materialize(self, None, None, b.at(n_threads)))
        return out

    def to_device(self, *, out: Any = None, stream: Any = None) -> Any:
        """The scores as an array (..., N, M) on their device or the CPU; masked entries are -inf."""
        return self._array(None, out, stream)

    def _array(self, weight: str | None, out: Any, stream: Any) -> Any:
        b = self.backend
        at = b.at(None, stream)
        target = b.output("out", out, self.shape, self.dtype)
        return b.give(b.materialize(self, weight, target, at), target, at)

    def logsumexp(
        self, axis: int = 1, *, n_threads: int | None = None, out: Any = None, stream: Any = None
    ) -> Real:
        """:math:`\\log\\sum_j e^{s_{ij}}` for each row (axis=1) or over i for each column (axis=0).

        It is -inf where everything is masked, and takes O(N + M) memory if the scores come from points.
        ``out``: an array to write to. ``stream``: the stream to use on a device (an integer handle, or a
        stream object of CuPy, PyTorch or CUDA Python); by default the current stream of the caller's library.
        """
        s, b = (self if _checks.axis(axis) == 1 else self.T), self.backend
        at = b.at(n_threads, stream)
        if out is None and b.host_arrays:
            here: Real = b.logsumexp(s, None, at)
            return here
        target = b.output("out", out, (*s.batch, s.n_rows), s.dtype)
        lse: Real = b.give(b.logsumexp(s, target, at), target, at)
        return lse

    def max(self, axis: int = 1, *, n_threads: int | None = None) -> Real:
        """The largest score of each row (axis=1) or column (axis=0); -inf where everything is masked."""
        s, b = (self if _checks.axis(axis) == 1 else self.T), self.backend
        out: Real = b.largest(s, b.at(n_threads))
        return out

    def marginals(
        self,
        f: npt.ArrayLike | None = None,
        g: npt.ArrayLike | None = None,
        *,
        n_threads: int | None = None,
    ) -> tuple[Real, Real]:
        """Row and column sums of :math:`e^{f_i + s_ij + g_j}` (DAC-7), both in one pass."""
        s, b = self if f is None and g is None else self._coupled(f, g), self.backend
        rows, columns = b.marginals(s, b.at(n_threads))
        return b.give(rows), b.give(columns)

    def __repr__(self) -> str:
        place = "" if self.device == "cpu" else f", device={self.device!r}"
        parts = ", ".join(self.terms.counts())
        return f"Scores(shape={self.shape}, dtype={self.dtype}{place}, {parts})"

    def _repr_html_(self) -> str:
        from . import _html

        return _html.scores(self)


def computed(name: str, array: Real, dtype: Any, copy: bool | None) -> npt.NDArray[Any]:
    """The result of ``np.asarray`` of a lazy object, whose array has just been computed."""
    if copy is False:
        raise ValueError(
            f"{name}: wanted copy=None or True, got False; the array has to be computed"
        )
    return array if dtype is None else array.astype(dtype, copy=False)
