"""One style for all figures, with colours that colour-blind readers can tell apart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import missing
from ._files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
COLOURS = {"dmap": BLUE, "amap": RED}
LABELS = {"dmap": "DMAP (diffusion)", "amap": "AMAP (attention)"}
CYCLIC = "twilight"


def figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without a window or matplotlib's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing("drawing figures", "experiments", "matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, x: str, y: str, title: str = "") -> None:
    """Sets the labels, draws a light grid and removes the box."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, fontsize="medium")
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def ticks_at(axes: Any, values: Any, *, y: bool = False) -> None:
    """Puts the ticks of a logarithmic axis at these values only, written as plain numbers."""
    axis = axes.yaxis if y else axes.xaxis
    shown = sorted({float(v) for v in values})
    axis.set_ticks(shown, [f"{v:g}" for v in shown])
    axis.set_ticks([], minor=True)


def plain_log(axes: Any) -> None:
    """Labels a logarithmic y axis: plain 1, 2, 5 if it has few decades, otherwise powers of ten only."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high / low < 300:
        subs = (1, 2, 5) if high / low < 30 else (1, 3)
        axes.yaxis.set_major_locator(LogLocator(10, subs=subs))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def headroom(axes: Any, share: float) -> None:
    """Leaves this share of the height of a logarithmic axis free above the curves, for a legend."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (share / (1 - share)))


def save(made: Figure, path: Path) -> Path:
    """Writes the figure as PNG, through a temporary file that is then renamed."""
    content = io.BytesIO()
    made.savefig(content, format="png", dpi=150, metadata={"Software": None})
    write_bytes(path, content.getvalue())
    return path
