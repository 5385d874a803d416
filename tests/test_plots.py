"""Pictures of results show the data, and all their parts have labels."""

from __future__ import annotations

import io
import itertools
import sys
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore import _plots

from .own_kernels import Dense

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib.collections import LineCollection, PathCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


def points(n: int, d: int = 2, dtype: str = "float64") -> Any:
    return np.random.default_rng(n).normal(size=(n, d)).astype(dtype)


def heat(ax: Any) -> Any:
    """The entries that a heat map shows."""
    (image,) = ax.images
    return image.get_array()


def labelled(figure: Figure, count: int) -> list[Any]:
    """The axes with data, each with labels and a title; drawing them raises nothing."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=40)
    assert content.getvalue()[:4] == b"\x89PNG"
    found = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert len(found) == count
    return found


def solved(n: int, m: int, dtype: str = "float64", **options: Any) -> qk.SchrodingerBridge:
    s = qk.scores.distance(points(n, dtype=dtype), points(m, dtype=dtype), beta=1.0)
    mu, nu = (np.arange(1.0, k + 1).astype(dtype) / (k * (k + 1) / 2) for k in (n, m))
    found: qk.SchrodingerBridge = qk.bridge(s, mu, nu, **options)
    return found


# ---- bridges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bridge_shows_plan_marginals_and_convergence(dtype: str) -> None:
    b = solved(7, 11, dtype)
    plan, top, side, end = labelled(b.plot(), 4)
    np.testing.assert_array_equal(heat(plan), b.plan())
    rows, columns = b.marginals()
    np.testing.assert_array_equal(top.lines[0].get_ydata(), columns)
    np.testing.assert_array_equal(side.lines[0].get_xdata(), rows)
    assert len(top.collections) == len(side.collections) == 1, "what was wanted, filled"
    errors, final, tolerance = end.lines
    np.testing.assert_array_equal(errors.get_ydata(), b.errors)
    np.testing.assert_array_equal(errors.get_xdata(), np.arange(1, len(b.errors) + 1))
    assert final.get_ydata() == [b.error] and set(tolerance.get_ydata()) == {b.tol}
    assert end.get_yscale() == "log" and end.get_title().startswith("converged")
    assert plan.get_xlabel() == "column j" and plan.get_ylabel() == "row i"
    # The marginals are drawn next to the plan, with the same rows and columns.
    assert top.get_xlim() == plan.get_xlim() and side.get_ylim() == plan.get_ylim()


def test_large_plans_are_means_of_blocks() -> None:
    n, m = 3 * _plots.MOST_CELLS // 2, _plots.MOST_CELLS + 1
    b = solved(n, m)
    seen = np.asarray(heat(labelled(b.plot(), 4)[0]))
    assert seen.shape == (_plots.MOST_CELLS, _plots.MOST_CELLS)
    at = [np.append(_plots._starts(k), k) for k in (n, m)]
    wanted = [
        [b.plan()[i:k, j:l].mean() for j, l in zip(at[1][:-1], at[1][1:], strict=True)]
        for i, k in zip(at[0][:3], at[0][1:4], strict=True)
    ]
    np.testing.assert_allclose(seen[:3], wanted, rtol=1e-9, atol=1e-300)


def test_axes_of_the_caller_are_used() -> None:
    figure = Figure()
    axes = figure.subplots(2, 2)
    assert solved(5, 6).plot(axes=axes.ravel()) is figure
    assert all(ax.lines or ax.images for ax in axes.ravel())
    with pytest.raises(ValueError, match="axes: wanted 4 axes, got 2"):
        solved(5, 6).plot(axes=axes[0])


def test_other_bridges() -> None:
    s = qk.scores.distance(points(6), beta=1.0)
    u = np.full(6, 1 / 6)
    (end,) = labelled(qk.bridge_chain([s, s], u, u).plot(), 1)
    assert len(end.lines) == 3
    b = qk.bridge(Dense(s.to_numpy()), u, u)
    np.testing.assert_allclose(heat(labelled(b.plot(), 4)[0]), b.plan())


def test_failed_bridges_say_so_and_batches_are_refused() -> None:
    b = solved(6, 7, max_iter=1, tol=1e-13, solver="alternating")
    assert labelled(b.plot(), 4)[3].get_title().startswith("not converged: iteration limit")
    u = np.full(6, 1 / 6)
    batch = qk.bridge(qk.scores.distance(points(12).reshape(2, 6, 2)), u, u)
    with pytest.raises(ValueError, match=r"plot: wanted one bridge, got a batch of 2"):
        batch.plot()
    labelled(batch[1].plot(), 4)


# ---- operators -----------------------------------------------------------------------------------


def test_operator_shows_entries_and_spectrum() -> None:
    A = qk.softmax(qk.scores.dot(points(9), W=np.array([[1.0, 2.0], [-2.0, 0.5]])).causal())
    entries, spectrum = labelled(A.plot(), 2)
    seen = heat(entries)
    np.testing.assert_array_equal(np.ma.filled(seen, 0), A.to_numpy())
    np.testing.assert_array_equal(np.ma.getmaskarray(seen), A.to_numpy() == 0)
    (dots,) = spectrum.collections
    found = np.sort_complex(dots.get_offsets() @ [1, 1j])
    # The eigenvalues of a triangular matrix are its diagonal.
    np.testing.assert_allclose(found, np.sort(np.diag(A.to_numpy())), atol=1e-12)
    assert spectrum.get_xlabel() == "real part" and "gap" in spectrum.get_title()
    assert [line.get_label() for line in spectrum.lines][0] == "unit circle"  # noqa: RUF015


def test_operators_of_other_kinds() -> None:
    A = qk.softmax(qk.scores.dot(points(6)))
    labelled((A @ A).plot(), 2)
    K = qk.kernel(qk.scores.dot(points(6)), "relu")
    assert "radius" in labelled(K.plot(), 2)[1].get_title()
    (entries,) = labelled(qk.softmax(qk.scores.dot(points(6), points(8))).plot(), 1)
    assert entries.get_title() == "MarkovOperator, 6 × 8"
    with pytest.raises(ValueError, match="plot: wanted one operator, got a batch"):
        qk.softmax(qk.scores.dot(points(6).reshape(2, 3, 2))).plot()


def test_large_operators_are_means_of_blocks_without_spectrum() -> None:
    n = _plots.MOST_EIGENVALUES + 1
    A = qk.softmax(qk.scores.distance(points(n)))
    (entries,) = labelled(A.plot(), 1)
    at = np.append(_plots._starts(n), n)
    dense = A.to_numpy()
    wanted = [dense[: at[1], j:k].mean() for j, k in itertools.pairwise(at)]
    np.testing.assert_allclose(np.asarray(heat(entries))[0], wanted, rtol=1e-9)


# ---- flows ---------------------------------------------------------------------------------------


def moved(n: int, d: int, steps: int = 20) -> qk.ParticleFlow:
    field = qk.AttentionField("softmax", Q=np.eye(d), K=np.eye(d), V=-np.eye(d))
    found: qk.ParticleFlow = qk.flow(field, points(n, d), (0.0, 1.0), "rk4", n_steps=steps)
    return found


@pytest.mark.parametrize("d", [1, 2, 3])
def test_flow_shows_every_path(d: int) -> None:
    sol = moved(6, d)
    (ax,) = labelled(sol.plot(), 1)
    (lines,) = (c for c in ax.collections if isinstance(c, LineCollection))
    start, end = (c for c in ax.collections if isinstance(c, PathCollection))
    pieces = np.array(lines.get_segments()).reshape(6, 20, 2, 2)
    x = sol.x.swapaxes(0, 1)
    drawn = x[..., :2] if d > 1 else np.stack([np.tile(sol.t, (6, 1)), x[..., 0]], axis=2)
    np.testing.assert_allclose(pieces[:, :, 0], drawn[:, :-1])
    np.testing.assert_allclose(pieces[:, :, 1], drawn[:, 1:])
    np.testing.assert_allclose(start.get_offsets(), drawn[:, 0])
    np.testing.assert_allclose(end.get_offsets(), drawn[:, -1])
    assert (ax.get_xlabel(), ax.get_ylabel()) == (("time", "x") if d == 1 else ("x₁", "x₂"))
    assert ax.get_title() == "6 particles, finished"


def test_flow_in_chosen_coordinates_and_axes() -> None:
    figure = Figure()
    ax = figure.subplots()
    sol = moved(5, 3)
    assert sol.plot(ax=ax, dims=(2, 0)) is figure
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x₃", "x₁")
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), sol.x[-1][:, [2, 0]])
    with pytest.raises(ValueError, match="dims: wanted"):
        sol.plot(dims=(0, 3))


def test_flows_of_bridges_are_drawn_alike() -> None:
    sol = qk.isb.heat_flow(points(12), 0.3, 4)
    (ax,) = labelled(sol.plot(), 1)
    assert len(ax.collections[0].get_segments()) == 12 * (len(sol.t) - 1)
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), sol.X)
    assert ax.get_title() == f"12 particles, {sol.status}"


def test_many_particles_and_times_are_thinned() -> None:
    sol = moved(_plots.MOST_PATHS + 100, 2, 300)
    (ax,) = labelled(sol.plot(), 1)
    assert len(ax.collections[0].get_segments()) == _plots.MOST_PATHS * (_plots.MOST_TIMES - 1)
    assert ax.get_title().startswith("400 of 500 particles")


@pytest.mark.parametrize("d", [1, 2])
def test_animation_follows_the_particles(d: int, tmp_path: Any) -> None:
    pytest.importorskip("PIL")
    sol = moved(4, d, 9)
    made = sol.animate(interval=20)
    figure = made._fig
    (ax,) = figure.axes
    seen: list[Any] = []
    made.save(
        str(tmp_path / "flow.gif"),
        writer="pillow",
        dpi=30,
        progress_callback=lambda k, n: seen.append(
            (ax.collections[0].get_offsets().copy(), ax.get_title())
        ),
    )
    assert len(seen) == len(sol.t) == 10
    for k, (dots, title) in enumerate(seen):
        np.testing.assert_allclose(dots[:, -1], sol.x[k, :, -1])
        assert title == f"t = {sol.t[k]:.3g}"
    assert len(ax.lines) == 4 and (tmp_path / "flow.gif").stat().st_size > 0


# ---- diffusion maps ------------------------------------------------------------------------------


def test_diffusion_map_shows_the_embedding() -> None:
    model = qk.diffusion.DiffusionMap(3).fit(points(40))
    for components in ((0, 1), (2, 0)):
        (ax,) = labelled(model.plot(components=components), 1)
        np.testing.assert_allclose(
            ax.collections[0].get_offsets(), model.embedding_[:, list(components)]
        )
        assert ax.get_xlabel().startswith(f"coordinate {components[0] + 1} (λ = 0.")
    color = np.arange(40.0)
    (ax,) = labelled(model.plot(color=color), 1)
    np.testing.assert_array_equal(ax.collections[0].get_array(), color)
    with pytest.raises(
        ValueError, match=r"color: wanted shape \(40,\) with a number for each point"
    ):
        model.plot(color=color[1:])
    with pytest.raises(ValueError, match="components: wanted"):
        model.plot(components=(0, 3))
    alone = qk.diffusion.DiffusionMap(1).fit(points(40))
    (ax,) = labelled(alone.plot(), 1)
    np.testing.assert_allclose(ax.collections[0].get_offsets()[:, 1], alone.embedding_[:, 0])
    with pytest.raises(ValueError, match="call fit"):
        qk.diffusion.DiffusionMap(2).plot()


# ---- the library ---------------------------------------------------------------------------------


def test_figures_show_themselves_in_notebooks_and_leave_no_global_state() -> None:
    figure: Any = solved(4, 4).plot()
    assert figure._repr_png_()[:4] == b"\x89PNG"
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    results = (
        solved(4, 4),
        qk.softmax(qk.scores.dot(points(4))),
        moved(3, 2),
        qk.diffusion.DiffusionMap(1).fit(points(9)),
    )
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "matplotlib.animation", None)  # type: ignore[arg-type]
    _plots._figures.cache_clear()
    wanted = r"plot: wanted matplotlib, which is not installed; pip install 'qkcore\[plot\]'"
    for draw in (*(result.plot for result in results), results[2].animate):
        with pytest.raises(ImportError, match=wanted):
            draw()
