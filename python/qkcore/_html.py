"""HTML for notebooks: a small table for each object, and a picture if it says more than numbers.

Each object is one element of well-formed XML without scripts and style sheets. Text and axes have the colour
of the page, and masked entries and backgrounds are transparent, so that it can be read on light and dark
pages. Every picture has a description as text. Nothing large is computed: entries are drawn only for matrices
of at most 64 x 64 entries.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _device

if TYPE_CHECKING:
    from ._bridge_result import SolvedBridge
    from ._lazy_scores import Scores
    from .diagnostics import Report
    from .flows import ParticleFlow
    from .gaussian import GaussianFlow
    from .isb import BridgeFlow

MOST_DRAWN = 64
MOST_CURVES = 60
WIDTH, HEIGHT = 260, 160
# A blue and an orange that are visible on white and on black.
BLUE, ORANGE = "#2f86d1", "#e08214"
# Five colours of viridis from dark to light; the colours between them are interpolated linearly.
SCALE = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])

Rows = Sequence[tuple[str, str]]
Array = npt.NDArray[Any]


# ---- objects -------------------------------------------------------------------------------------


def scores(s: Scores) -> str:
    """The card of lazy scores."""
    rows = [
        *_array_rows(s.shape, s.dtype, s.device),
        ("terms", ", ".join(s.terms.counts()) or "none"),
        ("symmetric", "yes" if s.symmetric else "not by construction"),
        ("largest entry", f"at most {s.bound:.4g} in magnitude"),
    ]
    return card("Scores", rows, _entries(s, "s", masked="-inf"))


def operator(A: Any) -> str:
    """The card of a stochastic operator, a kernel, or any other linear map."""
    rows = _array_rows(A.shape, A.dtype, getattr(A, "device", "cpu"))
    weight, stochastic = getattr(A, "weight", None), hasattr(A, "axis")
    if stochastic:
        sides = {1: "rows", 0: "columns"}
        named = "rows and columns" if getattr(A, "bistochastic", False) else sides[A.axis]
        rows.append(("kind", f"stochastic: {named} sum to 1"))
    elif weight is not None:
        rows.append(("kind", f"kernel, weight {weight!r}, not normalised"))
    if (ranks := getattr(A, "ranks", None)) is not None:
        rows.append(("ranks", " x ".join(map(str, ranks))))
    if (s := getattr(A, "scores", None)) is not None:
        rows.append(("scores", ", ".join(s.terms.counts()) or "none"))
    if stochastic and _small(A) and (n := int(A.empty.sum())):
        rows.append(("empty", f"{n} fully masked, of weight 0"))
    rows.append(("as an array", _bytes(math.prod(A.shape) * A.dtype.itemsize)))
    return card(type(A).__name__, rows, _entries(A, "A"))


def bridge(b: SolvedBridge) -> str:
    """The card of any solved bridge, or of a batch of them."""
    head, _, state = str(b).splitlines()[0].partition(": ")
    batch = not isinstance(b.status, str)
    if batch and not np.all(b.converged):
        names, counts = np.unique(np.ravel(b.status), return_counts=True)
        told = [f"{count} {name}" for name, count in zip(names, counts, strict=True)]
        state = f"{state}: {', '.join(told)}"
    rows = [("status", state)]
    balanced = all(map(math.isinf, b.penalty))
    rows += [
        ("method", ", or ".join(sorted(set(np.ravel(b.method).tolist())))),
        ("iterations", _range(b.n_iter, "d")),
        ("visits of all entries", _range(b.n_visits, "d")),
        ("marginal error" if balanced else "optimality residual", f"{_range(b.error, '.2e')} (L1)"),
        ("worst single entry", f"{_range(b.worst, '.2e')} (relative)"),
        ("tolerance", f"{b.tol:.2e}"),
    ]
    if not balanced:
        rows.append(("KL penalties", ", ".join(f"{p:.4g}" for p in b.penalty)))
    errors = np.sort(np.ravel(b.error))[::-1] if batch else np.ravel(b.errors)
    x = "problem, worst first" if batch else "iteration"
    return card(head, rows, _decay(errors, b.tol, x))


def flow(sol: ParticleFlow) -> str:
    """The card of a trajectory of particles."""
    times, n, d = sol.x.shape
    here = not _device.on_device(sol.x)
    rows = [
        ("status", f"{sol.status}: {sol.message}"),
        ("particles", f"{n} in {d} dimension{'s' if d > 1 else ''}"),
        *_array_rows(tuple(sol.x.shape), sol.x.dtype, "cpu" if here else _device.place(sol.x)),
        ("times", f"{times}, from {sol.t[0]:.4g} to {sol.t[-1]:.4g}"),
        ("method", sol.method),
        ("steps", f"{sol.n_steps} accepted, {sol.n_rejected} rejected"),
        ("evaluations", str(sol.n_evaluations)),
    ]
    return card("Particle flow", rows, _trajectories(sol) if here else "")


def bridge_flow(sol: BridgeFlow) -> str:
    """The card of particles moved by iterated bridges."""
    _, n, d = sol.x.shape
    here = not _device.on_device(sol.x)
    rows = [
        ("status", sol.status),
        ("particles", f"{n} in {d} dimension{'s' if d > 1 else ''}"),
        *_array_rows(tuple(sol.x.shape), sol.x.dtype, "cpu" if here else _device.place(sol.x)),
        ("times", f"{len(sol.t)}, from {sol.t[0]:.4g} to {sol.t[-1]:.4g}"),
        ("steps", f"{sol.n_steps} of {sol.epsilon:.4g}"),
        ("largest marginal error", f"{sol.errors.max(initial=0.0):.2e}"),
        ("largest self weight", f"{sol.self_weight.max(initial=0.0):.3g}"),
    ]
    picture = _trajectories(sol) if here else ""
    return card(f"Flow by iterated bridges: {sol.kind}", rows, picture)


def gaussian_flow(sol: GaussianFlow) -> str:
    """The card of Gaussian laws over time."""
    here = not _device.on_device(sol.cov)
    batch = tuple(sol.mean.shape[1:-1])
    d = sol.mean.shape[-1]
    rows = [
        ("laws", f"{math.prod(batch)} in {d} dimension{'s' if d > 1 else ''}"),
        *_array_rows(
            tuple(sol.cov.shape), sol.cov.dtype, "cpu" if here else _device.place(sol.cov)
        ),
        ("status", ", ".join(f"{n} {name}" for name, n in sol.counts().items())),
        ("rank of the limit", _range(sol.rank, "d")),
        ("times", f"{len(sol.t)}, from {sol.t[0]:.4g} to {sol.t[-1]:.4g}"),
        ("field, method", f"{sol.kind}, {sol.method}"),
    ]
    picture = ""
    if here and not batch and len(sol.t) > 1:
        values = np.linalg.eigvalsh(sol.cov.astype(np.float64))
        picture = _curves(
            sol.t, values.T, "time", "eigenvalues", f"Eigenvalues of the covariance, {d} curves"
        )
    return card("Gaussian flow", rows, picture)


def report(r: Report) -> str:
    """The table of the checks P0 to P4."""
    head = ("check", "", "verdict", "number", "threshold", "reason")
    marks = {"pass": "✓ ", "fail": "✗ "}
    body = "".join(
        _row(
            "td",
            c.name,
            c.title,
            marks.get(c.verdict, "– ") + c.verdict,
            "–" if c.value is None else f"{c.value:.3g}",
            f"{c.sense} {c.threshold:g}",
            c.reason,
        )
        for c in r.checks
    )
    return (
        f"<div>{_heading('Diagnostics: ' + ('passed' if r.passed else 'not passed'))}"
        f"<div>{escape(r.shape)}</div>{_table(_row('th', *head, scope='col') + body)}</div>"
    )


# ---- parts ---------------------------------------------------------------------------------------


def card(title: str, rows: Rows, picture: str = "") -> str:
    """A heading, a table of names and values, and a picture beside it."""
    body = "".join(
        f'<tr><th scope="row" style="{CELL};font-weight:600">{escape(name)}</th>'
        f'<td style="{CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">'
        f"<div>{_heading(title)}{_table(body)}</div>{picture}</div>"
    )


CELL = "text-align:left;padding:.1em .8em .1em 0;vertical-align:top;background:transparent"


def _heading(text: str) -> str:
    return f'<div style="font-weight:700;margin-bottom:.2em">{escape(text)}</div>'


def _table(body: str) -> str:
    return f'<table style="border-collapse:collapse;margin:0;color:inherit"><tbody>{body}</tbody></table>'


def _row(tag: str, *cells: str, scope: str = "") -> str:
    scope = f' scope="{scope}"' if scope else ""
    inside = "".join(f'<{tag}{scope} style="{CELL}">{escape(c)}</{tag}>' for c in cells)
    return f"<tr>{inside}</tr>"


def _array_rows(shape: tuple[int, ...], dtype: Any, where: str) -> list[tuple[str, str]]:
    return [
        ("shape", " × ".join(map(str, shape))),
        ("dtype", str(dtype)),
        ("where", "CPU" if where == "cpu" else where),
    ]


def _range(values: Any, spec: str) -> str:
    """One number, or the least and the largest of several.

    >>> _range(7, "d"), _range([3, 12], "d"), _range([0.5, 0.5], ".1f")
    ('7', '3 to 12', '0.5')
    """
    flat = np.ravel(values).tolist()
    low, high = format(min(flat), spec), format(max(flat), spec)
    return low if low == high else f"{low} to {high}"


def _bytes(size: float) -> str:
    """A number of bytes with its unit.

    >>> _bytes(800), _bytes(3.2e9)
    ('800 B', '3.2 GB')
    """
    unit = 0
    while size >= 1000 and unit < 5:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[unit]}"


# ---- pictures ------------------------------------------------------------------------------------


def _small(matrix: Any) -> bool:
    """Whether the entries are drawn: only those of one matrix with few rows and columns."""
    return len(matrix.shape) == 2 and min(matrix.shape) > 0 and max(matrix.shape) <= MOST_DRAWN


def _entries(matrix: Any, name: str, masked: str = "0") -> str:
    """A heat map of the entries of one small matrix."""
    if not _small(matrix):
        return ""
    values = np.asarray(matrix.to_numpy(), np.float64)
    live = np.isfinite(values) if masked == "-inf" else values != 0
    if not live.any():
        return ""
    low, high = float(values[live].min()), float(values[live].max())
    if masked != "-inf":
        low = min(low, 0.0)
    level = np.zeros(values.shape)
    if high / 4 > low / 4:
        level = np.clip(_share(np.where(live, values, low), low, high), 0, 1)
    pixels = np.zeros((*values.shape, 4), np.uint8)
    at = np.arange(len(SCALE)) / (len(SCALE) - 1)
    for k in range(3):
        pixels[..., k] = np.rint(np.interp(level, at, SCALE[:, k]))
    pixels[..., 3] = np.where(live, 255, 0)
    n, m = values.shape
    told = (
        f"Heat map of the {n} x {m} entries of {name}, from {low:.3g} (dark) to {high:.3g} (light)"
    )
    if not live.all():
        told += f"; the {int((~live).sum())} that are {masked} are left empty"
    cell = max(1, min(192 // n, 192 // m)) if max(n, m) > 8 else 24
    colours = ",".join(f"rgb({r},{g},{b})" for r, g, b in SCALE)
    return (
        '<figure style="margin:0;font-size:.85em">'
        f'<img src="data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}" '
        f'alt="{escape(told)}" width="{m * cell}" height="{n * cell}" '
        'style="image-rendering:pixelated;display:block;margin:0;'
        'border:1px solid currentColor"/>'
        f'<figcaption style="display:flex;gap:.5em;align-items:center">{low:.3g}'
        '<span style="display:inline-block;width:6em;height:.6em;'
        f'background:linear-gradient(to right,{colours})"></span>'
        f"{high:.3g}</figcaption></figure>"
    )


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Red, green, blue and opacity of every pixel, as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    n, m, _ = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", m, n, 8, 6, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(lines, 9))
        + chunk(b"IEND", b"")
    )


def _decay(errors: Array, tol: float, x: str) -> str:
    """Errors on a logarithmic axis, with the tolerance."""
    errors = np.asarray(errors, np.float64)
    shown = np.isfinite(errors) & (errors > 0)
    if shown.sum() < 2:
        return ""
    at, values = _thinned(np.flatnonzero(shown) + 1.0, np.log10(errors[shown]))
    lines = [("tolerance", math.log10(tol))] if tol > 0 else []
    told = f"Errors over {len(errors)} values ({x}), from {errors[shown][0]:.1e} to {errors[shown][-1]:.1e}"
    return _chart([(at, values)], x, "error", told, power=True, lines=lines)


def _curves(t: Array, values: Array, x: str, y: str, told: str) -> str:
    """Functions of time, one in each row."""
    some = _spread(len(values))
    drawn = [_thinned(np.asarray(t, np.float64), np.asarray(values[k], np.float64)) for k in some]
    return _chart(drawn, x, y, told)


def _trajectories(sol: ParticleFlow | BridgeFlow) -> str:
    """Paths in the first two coordinates, or over time in one dimension; dots where they end."""
    times, n, d = sol.x.shape
    if times < 2 or n == 0:
        return ""
    x = np.asarray(sol.x, np.float64)
    some = _spread(n)
    part = f"{len(some)} of {n} particles" if len(some) < n else f"{n} particles"
    if d == 1:
        told = f"{part} over time"
        return _chart([_thinned(sol.t, x[:, k, 0]) for k in some], "time", "x", told, ends=True)
    told = (
        f"Paths of {part}" + (", first two coordinates" if d > 2 else "") + "; dots where they end"
    )
    paths = [_thinned(x[:, k, 0], x[:, k, 1]) for k in some]
    return _chart(paths, "x₁", "x₂", told, ends=True)


def _spread(n: int) -> list[int]:
    """At most MOST_CURVES of n indices, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_CURVES)).astype(int)).tolist() if n else []


def _thinned(x: Array, y: Array, most: int = 120) -> tuple[Array, Array]:
    """The first point, the last point, and points between them that are evenly spaced in their order."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]


def _chart(
    curves: Sequence[tuple[Array, Array]],
    x: str,
    y: str,
    told: str,
    *,
    power: bool = False,
    ends: bool = False,
    lines: Iterable[tuple[str, float]] = (),
) -> str:
    """Curves as SVG, with the range of both axes; ``power``: y is a power of ten."""
    lines = list(lines)
    finite = [np.isfinite(a) & np.isfinite(b) for a, b in curves]
    curves = [(a[ok], b[ok]) for (a, b), ok in zip(curves, finite, strict=True)]
    xs = np.concatenate([a for a, _ in curves])
    ys = np.concatenate([*(b for _, b in curves), [v for _, v in lines]])
    if not len(xs):
        return ""
    left, top, right, bottom = 46.0, 8.0, WIDTH - 8.0, HEIGHT - 30.0
    (x0, x1), (y0, y1) = _limits(xs), _limits(ys)
    if power:
        y0, y1 = math.floor(y0), math.ceil(y1)

    def px(a: Any) -> Any:
        return left + 4 + _share(np.asarray(a), x0, x1) * (right - left - 8)

    def py(b: Any) -> Any:
        return bottom - 4 - _share(np.asarray(b), y0, y1) * (bottom - top - 8)

    parts = [
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" '
        'stroke="currentColor" stroke-opacity=".35"/>'
    ]
    for name, value in lines:
        at = float(py(value))
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="{ORANGE}" '
            'stroke-dasharray="4 3"/>'
            + _text(left + 4, at - 3 if at > top + 14 else at + 11, name, "start", ORANGE)
        )
    width = 1.6 if len(curves) < 5 else 0.8
    for a, b in curves:
        points = " ".join(f"{u:.1f},{v:.1f}" for u, v in zip(px(a), py(b), strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )
    if ends:
        parts += [
            f'<circle cx="{float(px(a[-1])):.1f}" cy="{float(py(b[-1])):.1f}" r="2" fill="{ORANGE}"/>'
            for a, b in curves
            if len(a)
        ]
    low, high = (f"{v:.3g}" if not power else f"1e{v}" if v else "1" for v in (y0, y1))
    parts += [
        _text(left - 4, bottom, low, "end"),
        _text(left - 4, top + 9, high, "end"),
        f'<g transform="translate({left - 8:.1f} {(top + bottom) / 2:.1f}) rotate(-90)">'
        f"{_text(0, 0, y, 'middle')}</g>",
        _text(left, bottom + 13, f"{x0:.3g}", "start"),
        _text(right, bottom + 13, f"{x1:.3g}", "end"),
        _text((left + right) / 2, bottom + 13, x, "middle"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}" '
        f'style="color:inherit;background:transparent"><title>{escape(told)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _limits(values: Array) -> tuple[float, float]:
    """The limits of an axis: the least and the largest value, moved apart if they are equal.

    >>> _limits(np.array([2.0, 5.0])), _limits(np.array([3.0, 3.0]))
    ((2.0, 5.0), (2.5, 3.5))
    """
    low, high = float(values.min()), float(values.max())
    if high / 4 - low / 4 > np.finfo(np.float64).tiny:
        return low, high
    room = max(0.5, abs(low) / 100)
    return low - room, high + room


def _share(values: Any, low: float, high: float) -> Any:
    """The position of values between two limits, from 0 to 1; quarters are used to prevent overflow."""
    return (values / 4 - low / 4) / (high / 4 - low / 4)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="10" '
        f'font-family="sans-serif" fill="{colour}">{escape(text)}</text>'
    )
