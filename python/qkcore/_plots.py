"""Pictures of results with matplotlib, which is imported only when a picture is asked for (extra ``plot``).

Every function returns the matplotlib figure. A new figure has no window and no global state: a notebook shows
it, and ``savefig`` writes it to a file. If the caller passes axes, the picture is drawn into them.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks, _device

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .diffusion import DiffusionMap
    from .flows import ParticleFlow
    from .isb import BridgeFlow

Array = npt.NDArray[Any]

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"
MAP = "viridis"

MOST_CELLS = 256
"""most rows and columns of a heat map; larger matrices are averaged over blocks of neighbours"""
MOST_EIGENVALUES = 1000
"""size of the largest operator whose spectrum is drawn; it is computed from the array"""
MOST_PATHS, MOST_TIMES = 400, 120


# ---- bridges -------------------------------------------------------------------------------------


def bridge(b: Any, axes: Sequence[Axes] | None = None) -> Figure:
    """The plan with its marginals at its sides, and the convergence of the solve."""
    if not isinstance(b.status, str):
        raise ValueError(
            f"plot: wanted one bridge, got a batch of {np.size(b.status)}; take one, as in b[0].plot()"
        )
    b = dataclasses.replace(b, on_fail="ignore")  # the title says how the solve ended
    if not hasattr(b, "plan"):  # a chain has many plans
        made, (end,) = _panels(axes, 1, (4.4, 3.4))
        _convergence(end, b)
        return made
    if axes is None:
        halves: Any = figure(9.6, 4.4).subfigures(1, 2, width_ratios=(1.25, 1))
        left, right = halves
        grid = left.add_gridspec(2, 2, width_ratios=(3, 1.3), height_ratios=(1, 3.4))
        plan = left.add_subplot(grid[1, 0])
        axes = (
            plan,
            left.add_subplot(grid[0, 0], sharex=plan),
            left.add_subplot(grid[1, 1], sharey=plan),
            right.add_subplot(),
        )
        for side in axes[1:3]:
            side.tick_params(labelbottom=side is axes[2], labelleft=side is axes[1])
    made, (plan, top, side, end) = _panels(axes, 4, (0, 0))
    values, (rows, columns) = _plan(b)
    n, m = len(rows), len(columns)
    label = "mass of an entry" + ("" if values.shape == (n, m) else ", mean of blocks")
    _heat(plan, values, (n, m), label, cmap="Blues", aspect="auto", beside=side)
    plan.set(xlabel="column j", ylabel="row i")
    mu, nu = _host(b.mu), _host(b.nu)
    top.fill_between(np.arange(m), nu, step="mid", color=BLUE, alpha=0.3, lw=0, label="wanted")
    top.plot(np.arange(m), columns, color=BLUE, lw=1, drawstyle="steps-mid", label="of the plan")
    side.fill_betweenx(np.arange(n), mu, step="mid", color=BLUE, alpha=0.3, lw=0)
    side.plot(rows, np.arange(n), color=BLUE, lw=1, drawstyle="steps-mid")
    top.set(ylabel="ν", ylim=(0, None))
    top.set_title("Plan and marginals", fontsize="medium")
    top.legend(fontsize=7, frameon=False, ncols=2, loc="upper right", borderaxespad=0)
    top.set_ylim(0, 1.45 * max(float(np.max(nu)), float(np.max(columns))))
    side.set(xlabel="μ", xlim=(0, None))
    for ax in (top, side):
        ax.spines[["top", "right"]].set_visible(False)
        ax.locator_params(nbins=2, axis="y" if ax is top else "x")
    _convergence(end, b)
    return made


def _plan(b: Any) -> tuple[Array, tuple[Array, Array]]:
    """The plan, or means over blocks of a large plan, and its marginals."""
    rows, columns = map(_host, b.marginals())
    n, m = len(rows), len(columns)
    forward = getattr(b, "forward", None)
    if max(n, m) <= MOST_CELLS or forward is None or _device.on_device(b.mu):
        return _host(b.plan()), (rows, columns)
    sums = forward @ _blocks(m, rows.dtype)
    return _means(rows[:, None] * sums, n, m), (rows, columns)


def _convergence(ax: Axes, b: Any) -> None:
    errors = np.ravel(b.errors)
    at = np.flatnonzero(np.isfinite(errors) & (errors > 0))
    ax.semilogy(at + 1, errors[at], color=BLUE, marker="o", ms=3 if len(at) < 60 else 0, lw=1.2,
                label="after each iteration")  # fmt: skip
    if np.isfinite(b.error) and b.error > 0:
        ax.plot(max(len(errors), 1), b.error, "D", color=RED, ms=6, ls="none", label="final check")
    ax.axhline(b.tol, color=GREY, ls="--", lw=1, label=f"tolerance {b.tol:.0e}")
    title = "converged" if b.converged else f"not converged: {b.status}"
    tidy(ax, "iteration", "L1 error, share of the mass", f"{title} ({b.method})")
    ax.locator_params(axis="x", integer=True)
    ax.legend(fontsize=8, frameon=False)


# ---- operators -----------------------------------------------------------------------------------


def operator(A: Any, axes: Sequence[Axes] | None = None) -> Figure:
    """A heat map of the entries, and the spectrum of small square operators."""
    if len(A.shape) != 2:
        raise ValueError(
            f"plot: wanted one operator, got a batch of shape {A.shape}; take one of its problems"
        )
    n, m = A.shape
    spectrum = n == m <= MOST_EIGENVALUES
    made, panels = _panels(axes, 1 + spectrum, (8.6, 3.8) if spectrum else (4.8, 3.8))
    if max(n, m) <= MOST_CELLS or getattr(A, "device", "cpu") != "cpu":
        values = _host(A.to_numpy())
    else:
        values = _means(A @ _blocks(m, A.dtype), n, m)
    label = "entry" if values.shape == (n, m) else "mean entry of a block"
    _heat(panels[0], values, (n, m), label)
    panels[0].set(xlabel="column j", ylabel="row i")
    panels[0].set_title(f"{type(A).__name__}, {n} × {m}", fontsize="medium")
    if spectrum:
        _spectrum(panels[1], np.linalg.eigvals(_host(A.to_numpy()).astype(np.float64)), A)
    return made


def _spectrum(ax: Axes, values: Array, A: Any) -> None:
    """Eigenvalues in the complex plane; for a stochastic matrix they lie in the unit disc."""
    if stochastic := hasattr(A, "stationary"):
        angle = np.linspace(0, 2 * np.pi, 200)
        ax.plot(np.cos(angle), np.sin(angle), color=GREY, lw=0.8, ls=":", label="unit circle")
    ax.axhline(0, color="0.85", lw=0.6, zorder=0)
    ax.axvline(0, color="0.85", lw=0.6, zorder=0)
    ax.scatter(values.real, values.imag, s=16, color=BLUE, alpha=0.7, lw=0, label="eigenvalues")
    first, second = [*sorted(np.abs(values), reverse=True), 0.0][:2]
    title = f"Spectrum, gap {first - second:.3g}" if stochastic else f"Spectrum, radius {first:.3g}"
    tidy(ax, "real part", "imaginary part", title)
    if stochastic:
        ax.set_aspect("equal")
        ax.legend(fontsize=8, frameon=False, loc="lower left")
    ax.grid(False)


# ---- flows ---------------------------------------------------------------------------------------


def flow(
    sol: ParticleFlow | BridgeFlow, ax: Axes | None = None, dims: tuple[int, int] = (0, 1)
) -> Figure:
    """Paths of the particles, coloured by time; in one dimension they are drawn over time."""
    made, (axis,) = _panels(None if ax is None else [ax], 1, (5.2, 4.2))
    from matplotlib.collections import LineCollection

    x, t = _states(sol), np.asarray(sol.t)
    times = np.unique(np.linspace(0, len(t) - 1, min(len(t), MOST_TIMES)).astype(int))
    some = np.unique(np.linspace(0, x.shape[1] - 1, min(x.shape[1], MOST_PATHS)).astype(int))
    paths, labels = _coordinates(x[np.ix_(times, some)], t[times], dims)
    pieces = np.stack([paths[:-1], paths[1:]], axis=2)  # (times - 1, particles, 2 ends, 2)
    lines = LineCollection(
        list(pieces.swapaxes(0, 1).reshape(-1, 2, 2)),
        array=np.tile((t[times][:-1] + t[times][1:]) / 2, len(some)),
        cmap=MAP,
        linewidths=0.9,
        alpha=0.8,
    )
    lines.set_clim(float(t.min()), float(t.max()) if len(t) > 1 else float(t.min()) + 1)
    axis.add_collection(lines)
    axis.scatter(
        paths[0][:, 0],
        paths[0][:, 1],
        s=12,
        facecolor="white",
        edgecolor=GREY,
        lw=0.8,
        zorder=3,
        label="start",
    )
    axis.scatter(paths[-1][:, 0], paths[-1][:, 1], s=18, color=RED, lw=0, zorder=4, label="end")
    axis.autoscale_view()
    shown = f"{len(some)} of {x.shape[1]}" if len(some) < x.shape[1] else str(len(some))
    tidy(axis, *labels, f"{shown} particles, {sol.status}")
    axis.legend(fontsize=8, frameon=False)
    if x.shape[2] > 1:
        axis.set_aspect("equal", "datalim")
        axis.figure.colorbar(lines, ax=axis, label="time", shrink=0.85)
    return made


def animate(
    sol: ParticleFlow | BridgeFlow,
    ax: Axes | None = None,
    dims: tuple[int, int] = (0, 1),
    interval: float = 40.0,
) -> FuncAnimation:
    """The particles as they move, with a short trail; one frame for each stored time."""
    made, (axis,) = _panels(None if ax is None else [ax], 1, (4.6, 4.2))
    from matplotlib.animation import FuncAnimation

    x, t = _states(sol), np.asarray(sol.t)
    paths, labels = _coordinates(x, t, dims)
    trails = [axis.plot([], [], color=BLUE, lw=0.7, alpha=0.5)[0] for _ in range(x.shape[1])]
    dots = axis.scatter(paths[0][:, 0], paths[0][:, 1], s=16, color=RED, lw=0, zorder=3)
    low, high = paths.min((0, 1)), paths.max((0, 1))
    room = 0.05 * np.maximum(high - low, 1e-9)
    axis.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
    if x.shape[2] > 1:
        axis.set_aspect("equal")
    tidy(axis, *labels)
    clock = axis.set_title("", fontsize="medium")

    def draw(k: int) -> list[Any]:
        begin = 0 if x.shape[2] == 1 else max(0, k - 12)
        for line, path in zip(trails, paths[begin : k + 1].swapaxes(0, 1), strict=True):
            line.set_data(*path.T)
        dots.set_offsets(paths[k])
        clock.set_text(f"t = {t[k]:.3g}")
        return [*trails, dots, clock]

    return FuncAnimation(made, draw, frames=len(t), interval=interval)


def _states(sol: ParticleFlow | BridgeFlow) -> Array:
    return np.asarray(_host(sol.x), np.float64)


def _coordinates(x: Array, t: Array, dims: tuple[int, int]) -> tuple[Array, tuple[str, str]]:
    """Two coordinates to draw, (times, particles, 2); in one dimension these are time and place."""
    d = x.shape[2]
    if d == 1:
        times = np.broadcast_to(t[:, None], x.shape[:2])
        return np.stack([times, x[..., 0]], axis=2), ("time", "x")
    first, second = (_checks.integer_within("dims", k, 0, d - 1, "coordinates") for k in dims)
    return x[..., [first, second]], (f"x{_low(first + 1)}", f"x{_low(second + 1)}")


# ---- diffusion maps ------------------------------------------------------------------------------


def diffusion_map(
    model: DiffusionMap,
    ax: Axes | None = None,
    color: npt.ArrayLike | None = None,
    components: tuple[int, int] = (0, 1),
) -> Figure:
    """The points in two of the coordinates; a single coordinate is drawn over the points' numbers."""
    made, (axis,) = _panels(None if ax is None else [ax], 1, (5.0, 4.2))
    where, values = model.embedding_, model.eigenvalues_
    n, k = where.shape
    if k == 1:
        x, y = np.arange(n).astype(where.dtype), where[:, 0]
        names = ("point", _coordinate(0, values))
    else:
        first, second = (
            _checks.integer_within("components", c, 0, k - 1, "coordinates") for c in components
        )
        x, y = where[:, first], where[:, second]
        names = (_coordinate(first, values), _coordinate(second, values))
    size = float(np.clip(4000 / n, 3, 30))
    style: dict[str, Any] = (
        {"color": BLUE} if color is None else {"c": _colours(color, n), "cmap": MAP}
    )
    dots = axis.scatter(x, y, s=size, alpha=0.85, lw=0, **style)
    tidy(axis, *names, f"Diffusion map of {n} points, t = {model.t:g}")
    if color is not None:
        axis.figure.colorbar(dots, ax=axis, shrink=0.85)
    return made


def _coordinate(k: int, values: Array) -> str:
    return f"coordinate {k + 1} (λ = {values[k]:.4g})"


def _colours(color: npt.ArrayLike, n: int) -> Array:
    values = np.asarray(color)
    _checks.shape("color", values.shape, (n,), why="with a number for each point")
    return values


# ---- parts ---------------------------------------------------------------------------------------


@functools.cache
def _figures() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "plot: wanted matplotlib, which is not installed; pip install 'qkcore[plot]'"
        ) from None

    class Picture(Figure):
        """A figure that notebooks show, whether or not pyplot was imported."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=100)
            return content.getvalue()

    return Picture


def figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches."""
    return _figures()(figsize=(width, height), layout="constrained")


def _panels(
    axes: Sequence[Axes] | None, count: int, inches: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """The caller's axes, or those of a new figure, and the figure that they are in."""
    if axes is None:
        new = figure(*inches)
        return new, list(np.atleast_1d(new.subplots(1, count)))
    given: list[Axes] = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count:
        raise ValueError(f"axes: wanted {count} axes, got {len(given)}")
    found: Any = given[0].figure
    while found.figure is not found and found.figure is not None:  # leave subfigures
        found = found.figure
    return found, given


def tidy(ax: Axes, x: str, y: str, title: str = "") -> None:
    """Gives axes their labels and a light grid, and removes the box."""
    ax.set(xlabel=x, ylabel=y)
    if title:
        ax.set_title(title, fontsize="medium")
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _heat(
    ax: Axes,
    values: Array,
    shape: tuple[int, int],
    label: str,
    *,
    cmap: str = MAP,
    aspect: str = "equal",
    beside: Axes | None = None,
) -> None:
    """Entries as colours; entries that are 0 stay empty. The colour bar is placed next to ``beside``."""
    n, m = shape
    image = ax.imshow(
        np.ma.masked_equal(values, 0.0),
        cmap=cmap,
        aspect="auto" if max(n, m) > 2 * min(n, m) else aspect,  # type: ignore[arg-type]
        interpolation="nearest",
        extent=(-0.5, m - 0.5, n - 0.5, -0.5),
        vmin=min(0.0, float(values.min())),
    )
    ax.figure.colorbar(image, ax=beside or ax, label=label, shrink=0.85)


def _starts(n: int) -> npt.NDArray[np.intp]:
    """Where the blocks begin into which n rows or columns are cut, at most MOST_CELLS blocks."""
    found: npt.NDArray[np.intp] = np.unique(
        np.linspace(0, n, min(n, MOST_CELLS), endpoint=False).astype(np.intp)
    )
    return found


def _means(sums: Array, n: int, m: int) -> Array:
    """Means of the blocks, from the sums of each row over blocks of columns."""
    sizes = [np.diff(np.append(_starts(length), length)) for length in (n, m)]
    return np.add.reduceat(sums, _starts(n), axis=0) / np.outer(*sizes)


def _blocks(m: int, dtype: Any) -> Array:
    """An array (m, blocks) that is 1 if the column is in the block, and 0 otherwise."""
    starts = _starts(m)
    out = np.zeros((m, len(starts)), dtype)
    out[np.arange(m), np.searchsorted(starts, np.arange(m), side="right") - 1] = 1
    return out


def _host(array: Any) -> Array:
    """The array as a NumPy array; an array on a device is copied."""
    return _device.to_host("plot", array) if _device.on_device(array) else np.asarray(array)


def _low(k: int) -> str:
    """A number in subscript digits.

    >>> _low(12)
    '₁₂'
    """
    return str(k).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
