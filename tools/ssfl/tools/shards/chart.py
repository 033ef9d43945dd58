"""Chart of the classes of each client, with a bar per client as in the paper, and of the sizes."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ssfl.datasets.shards.summary import ShardSummary
from ssfl.durable.files import atomic_file
from ssfl.program.palette import CATEGORIES, GREY

_MAX_NAMED = 20  # classes with a palette colour and a line in the legend
_MAX_NAME_LENGTH = 22
_BAR_STEPS = 2000  # resolution of a bar
_MAX_SEPARATED = 150  # bars with a white line between them


def draw_classes(summary: ShardSummary, path: Path) -> None:
    """Draw the training samples per client and class into a PNG file."""
    clients = len(summary.paths)
    height = min(max(3.2, 1.6 + 0.3 * clients), 11.0)
    figure = Figure(figsize=(9, height), layout="constrained")
    mixes, sizes = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
    colours = _colours(len(summary.group_names))
    _draw_mixes(mixes, summary.train_counts, colours)
    _draw_sizes(sizes, summary.train_counts.sum(axis=1))
    _add_legend(figure, sizes, summary, colours)
    figure.suptitle(_title(summary), parse_math=False)
    with atomic_file(path) as file:
        figure.savefig(file, dpi=130, format="png")


def _draw_mixes(axes: Axes, counts: npt.NDArray[np.int64], colours: Colormap) -> None:
    """Draw the class shares of each client as one image, since there may be many clients."""
    clients, groups = counts.shape
    places = (np.arange(_BAR_STEPS) + 0.5) / _BAR_STEPS
    reach = np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True)
    picture = [np.searchsorted(row, places, side="right") for row in reach]
    axes.imshow(
        np.array(picture),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        norm=_norm(groups),
        extent=(0, 100, clients - 0.5, -0.5),
    )
    if clients <= _MAX_SEPARATED:
        for border in range(1, clients):
            axes.axhline(border - 0.5, color="white", linewidth=min(4, 60 / clients))
    axes.set_xlabel("classes of its training samples, %")
    axes.set_ylabel("client")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=30, integer=True, min_n_ticks=1))
    _hide_frame(axes)


def _draw_sizes(axes: Axes, sizes: npt.NDArray[np.int64]) -> None:
    axes.barh(np.arange(len(sizes)), sizes, color=GREY, height=0.8)
    axes.set_xlabel("training samples")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.tick_params(axis="y", left=False)
    _hide_frame(axes)


def _hide_frame(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)


def _colours(groups: int) -> Colormap:
    """Return a colour per class; the colours of a few classes are clearly distinct."""
    if groups <= len(CATEGORIES):
        return ListedColormap(CATEGORIES[:groups])
    if groups <= _MAX_NAMED:
        return ListedColormap(mpl.color_sequences["tab20"][:groups])
    rainbow = mpl.colormaps["turbo"](np.linspace(0, 1, groups))
    rainbow[1::2, :3] *= 0.7  # darken every other colour, so that neighbours differ
    return ListedColormap(list(rainbow))


def _norm(groups: int) -> BoundaryNorm:
    return BoundaryNorm(np.arange(groups + 1) - 0.5, groups)


def _add_legend(figure: Figure, axes: Axes, summary: ShardSummary, colours: Colormap) -> None:
    groups = len(summary.group_names)
    if groups > _MAX_NAMED:
        scale = figure.colorbar(ScalarMappable(_norm(groups), colours), ax=axes, pad=0.08)
        scale.locator = MaxNLocator(nbins=10, integer=True)
        scale.minorticks_off()
        scale.update_ticks()
        scale.set_label("class")
        return
    handles = [
        Patch(color=colours(label), label=_drawable(name, f"class {label}"))
        for label, name in enumerate(summary.group_names)
    ]
    title = "class" if summary.num_classes else "target"
    legend = figure.legend(
        handles=handles, title=title, loc="outside right center", frameon=False, fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _drawable(name: str, fallback: str) -> str:
    """Return a shortened name, or `fallback` if the font lacks one of its characters."""
    known = get_font(findfont(FontProperties())).get_charmap()
    if not name.strip() or any(ord(char) not in known for char in name):
        return fallback
    return name if len(name) <= _MAX_NAME_LENGTH else name[: _MAX_NAME_LENGTH - 1] + "…"


def _title(summary: ShardSummary) -> str:
    cut = summary.cut
    clients = f"{cut.clients} clients" if cut.clients > 1 else "1 client"
    kind = {
        "classes": f"{cut.classes_per_client} classes per client",
        "dirichlet": f"Dirichlet({cut.alpha:g}), balanced",
        "dirichlet-unbalanced": f"Dirichlet({cut.alpha:g}), unbalanced",
        "iid": "IID",
    }[cut.partition]
    return f"{_drawable(Path(summary.name).name, 'data set')}: {kind}, {clients}"
