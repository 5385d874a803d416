"""What notebooks show is well-formed and escaped, with the numbers of the object; pictures match the data."""

from __future__ import annotations

import base64
import math
import struct
import warnings
import xml.etree.ElementTree as ET
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import qkcore as qk
from qkcore import _html

SVG = "{http://www.w3.org/2000/svg}"


def page(shown: Any) -> ET.Element:
    """What the object shows, parsed; the parser refuses what is not well-formed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # showing an operator must not compute anything
        text = shown._repr_html_()
    assert "<script" not in text and "nan" not in text.lower().replace("nano", "")
    return ET.fromstring(text)


def table(shown: Any) -> dict[str, str]:
    """Names and values of the rows."""
    found = {}
    for row in page(shown).iter("tr"):
        head, value = row
        assert head.tag == "th" and head.get("scope") == "row"
        found["".join(head.itertext())] = "".join(value.itertext())
    return found


def pixels(shown: Any) -> npt.NDArray[np.uint8]:
    """The heat map, decoded: rows, columns, (red, green, blue, opacity)."""
    (image,) = page(shown).iter("img")
    kind, _, data = str(image.get("src")).partition(",")
    assert kind == "data:image/png;base64" and image.get("alt")
    png = base64.b64decode(data)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (n,) = struct.unpack(">I", png[at : at + 4])
        name, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + n]
        assert struct.unpack(">I", png[at + 8 + n : at + 12 + n])[0] == zlib.crc32(name + content)
        chunks[name], at = content, at + 12 + n
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 6) and b"IEND" in chunks
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 4 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4)


def curves(shown: Any) -> list[npt.NDArray[np.float64]]:
    """Points of the curves, in pixels."""
    (svg,) = page(shown).iter(SVG + "svg")
    assert svg.get("role") == "img" and svg.get("aria-label")
    assert svg.get("aria-label") == svg.findtext(SVG + "title")
    return [
        np.array([pair.split(",") for pair in str(line.get("points")).split()], np.float64)
        for line in svg.iter(SVG + "polyline")
    ]


def points(n: int, d: int = 2, dtype: str = "float64") -> Any:
    return np.random.default_rng(n).normal(size=(n, d)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores(dtype: str) -> None:
    X, Y = points(5, dtype=dtype), points(7, dtype=dtype)
    s = qk.scores.distance(X, Y, beta=2.0).causal()
    shown = table(s)
    assert shown["shape"] == "5 × 7" and shown["dtype"] == dtype and shown["where"] == "CPU"
    assert shown["terms"] == "1 distance, band" and shown["symmetric"] == "not by construction"
    assert table(qk.scores.distance(X))["symmetric"] == "yes"
    assert table(qk.scores.dot(points(12).reshape(3, 4, 2)))["shape"] == "3 × 4 × 4"
    values, seen = s.to_numpy(), pixels(s)
    assert seen.shape == (5, 7, 4)
    np.testing.assert_array_equal(seen[..., 3] == 255, np.isfinite(values))
    # Viridis becomes lighter with larger values, so the order of brightness is that of the entries.
    live = np.isfinite(values)
    light = seen[live][:, :3].astype(float) @ [0.2, 0.7, 0.1]
    assert (np.diff(light[np.argsort(values[live], kind="stable")]) >= -1.5).all()


def test_operators() -> None:
    s = qk.scores.dot(points(6)).masked(np.tri(6, k=-1, dtype=bool))
    A = qk.softmax(s)
    shown = table(A)
    assert shown["kind"] == "stochastic: rows sum to 1" and shown["as an array"] == "288 B"
    assert shown["empty"] == "1 fully masked, of weight 0" and shown["scores"] == "1 dot, 1 mask"
    np.testing.assert_array_equal(pixels(A)[..., 3] == 255, A.to_numpy() > 0)
    assert table(qk.softmax(s, axis=0))["kind"] == "stochastic: columns sum to 1"
    assert table(qk.kernel(s, "relu"))["kind"] == "kernel, weight 'relu', not normalised"
    whole = qk.sinkhorn(qk.scores.distance(points(6)))
    assert table(whole)["kind"] == "stochastic: rows and columns sum to 1"
    assert table(A @ A)["kind"] == "stochastic: rows sum to 1"
    factors = qk.LowRank(np.ones((6, 2)), np.ones((2, 6)))
    shown = table(qk.poe(factors, factors))
    assert shown["ranks"] == "2 x 2" and "kind" not in shown
    assert "kind" not in table(A + A)
    uniform = np.full(6, 1 / 6)
    assert "ranks" not in table(qk.bridge(factors, uniform, uniform).forward)


def test_one_entry_alone_and_one_value_have_a_picture() -> None:
    assert pixels(qk.softmax(qk.scores.dense(np.zeros((1, 1))))).shape == (1, 1, 4)
    seen = pixels(qk.scores.dense(np.full((2, 3), 4.0)))
    assert (seen == seen[0, 0]).all() and seen[0, 0, 3] == 255


def test_large_matrices_and_batches_are_not_drawn() -> None:
    for n, drawn in ((64, 1), (65, 0)):
        assert len(list(page(qk.softmax(qk.scores.dot(points(n)))).iter("img"))) == drawn
    assert not list(page(qk.softmax(qk.scores.dot(points(12).reshape(2, 6, 2)))).iter("img"))
    huge = qk.softmax(qk.scores.dot(points(200_000)))
    assert table(huge)["as an array"] == "320 GB"
    assert not huge._normalizer_cell, "nothing was computed to show it"


def test_bridges() -> None:
    s, u = qk.scores.distance(points(8), points(9), beta=1.0), np.full(8, 1 / 8)
    b = qk.bridge(s, u, np.full(9, 1 / 9), tol=1e-10)
    shown = table(b)
    assert shown["status"] == "converged" and shown["iterations"] == str(b.n_iter)
    assert shown["marginal error"] == f"{b.error:.2e} (L1)" and shown["tolerance"] == "1.00e-10"
    (line,) = curves(b)
    assert len(line) == len(b.errors) > 3
    # Heights are linear in the logarithms of the errors.
    slope = np.diff(line[:, 1]) / np.diff(np.log10(b.errors))
    np.testing.assert_allclose(slope, slope.mean(), rtol=0.05)
    relaxed = table(qk.bridge(s, u, np.full(9, 1 / 9), penalty=(2.0, math.inf)))
    assert relaxed["KL penalties"] == "2, inf" and "optimality residual" in relaxed


def test_bridges_that_failed_are_shown_without_a_warning() -> None:
    X, u = points(24).reshape(3, 8, 2), np.full(8, 1 / 8)
    s = qk.scores.distance(X, X[::-1], beta=4.0)
    few: dict[str, Any] = {"max_iter": 2, "tol": 1e-12, "solver": "alternating"}
    b = qk.bridge(qk.scores.distance(X[0], X[1], beta=4.0), u, u, **few)
    assert table(b)["status"] == "not converged (iteration limit)"
    batch = qk.bridge(s + qk.scores.dense(np.triu(np.ones((8, 8)))), u, u, **few)
    shown = table(batch)
    assert shown["status"] == "0 of 3 converged: 3 iteration limit"
    assert shown["marginal error"].count(" to ") == 1
    (line,) = curves(batch)
    assert len(line) == 3 and (np.diff(line[:, 1]) >= 0).all(), "the worst first"


def test_particle_flows() -> None:
    for d in (1, 2, 3):
        field = qk.AttentionField("softmax", Q=np.eye(d), K=np.eye(d), V=-np.eye(d))
        sol = qk.flow(field, points(5, d), (0.0, 1.0), "rk4", n_steps=10)
        shown = table(sol)
        assert shown["particles"].startswith(f"5 in {d} dimension")
        assert shown["steps"] == "10 accepted, 0 rejected" and "finished" in shown["status"]
        paths = curves(sol)
        assert len(paths) == 5 and all(len(path) == 11 for path in paths)
        assert len(list(page(sol).iter(SVG + "circle"))) == 5
    many = qk.flow(field, points(300, 3), (0.0, 1.0), "rk4", n_steps=400)
    assert len(curves(many)) == _html.MOST_CURVES and max(map(len, curves(many))) <= 120


def test_flows_of_bridges() -> None:
    sol = qk.isb.heat_flow(points(12), 0.3, 4)
    shown = table(sol)
    assert shown["status"] == sol.status and shown["steps"] == "4 of 0.3"
    assert shown["largest marginal error"] == f"{sol.errors.max():.2e}"
    assert len(curves(sol)) == 12


def test_gaussian_flows() -> None:
    one = {"Q": np.eye(2), "K": np.eye(2), "V": -np.eye(2), "n_steps": 20, "method": "euler"}
    sol = qk.gaussian.flow("softmax", np.zeros(2), np.diag([1.0, 2.0]), (0.0, 3.0), **one)
    shown = table(sol)
    assert shown["laws"] == "1 in 2 dimensions" and shown["times"] == "21, from 0 to 3"
    assert len(curves(sol)) == 2
    covs = np.stack([np.eye(2), 3 * np.eye(2)])
    batch = qk.gaussian.flow("softmax", np.zeros((2, 2)), covs, (0.0, 3.0), **one)
    assert table(batch)["status"].startswith("2 ")
    assert not list(page(batch).iter(SVG + "svg"))


def test_reports() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 12, 8)).cumsum(0) * 0.1
    report = qk.diagnostics.run(logits)
    head, *rows = page(report).iter("tr")
    assert head[0].text == "check" and all(cell.get("scope") == "col" for cell in head)
    assert [row[0].text for row in rows] == ["P0", "P1", "P2", "P3", "P4"]
    for row in rows:
        assert str(row[2].text).endswith(report.verdicts[str(row[0].text)])


def test_what_names_hold_is_escaped() -> None:
    text = _html.card("<b>", [("a & b", 'x < y "quoted"')])
    (cell,) = ET.fromstring(text).iter("td")
    assert cell.text == 'x < y "quoted"' and "&lt;b&gt;" in text and "a &amp; b" in text


def test_extreme_numbers_are_drawn_without_overflow() -> None:
    for values in ([[8e307, -8e307], [0.0, 1.0]], [[5e-324, 0.0], [0.0, 0.0]]):
        assert pixels(qk.scores.dense(np.array(values)))[..., 3].all()
    nothing = np.full((3, 3), -np.inf)
    assert not list(page(qk.scores.dense(nothing)).iter("img"))
    assert table(qk.softmax(qk.scores.dense(nothing)))["empty"] == "3 fully masked, of weight 0"
    still = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=np.zeros((2, 2)))
    sol = qk.flow(still, np.full((3, 2), 1e300), (0.0, 1.0))
    assert all(np.isfinite(path).all() for path in curves(sol))
    grown = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=5 * np.eye(2))
    sol = qk.flow(grown, points(5), (0.0, 400.0))
    assert sol.status == "blew up" and table(sol)["status"].startswith("blew up")
    assert all(np.isfinite(path).all() for path in curves(sol))


def test_ragged_bridges_are_batches() -> None:
    s = qk.scores.dot(points(7)).ragged([0, 3, 7])
    u = np.r_[np.full(3, 1 / 3), np.full(4, 1 / 4)]
    assert table(qk.bridge(s, u, u))["status"] == "2 of 2 converged"
    assert table(s)["terms"] == "1 dot, 2 ragged blocks"
