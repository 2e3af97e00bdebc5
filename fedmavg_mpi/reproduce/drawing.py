"""What the figures share: curves of several starts, costs in values and bytes, legends beside the curves."""

import numpy as np

from fedmavg_mpi.report.plots import plt

# colours that also tell apart by lightness (Okabe and Ito), dashes for print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
BYTES_A_VALUE = 8  # float64, which all the figures' runs use
COST_LABEL = "values between clients and server"


def grid(rows, columns, width=4.6, height=3.6):
    """A figure and its axes (rows x columns)."""
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    figure.set_layout_engine("constrained")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure, axes


def draw_starts(axis, starts, x, y, skip=0, middle=np.mean, **style):
    """The mean of several starts (or what ``middle`` is) as a line, their range as a band.

    Parameters
    ----------
    axis : matplotlib axis
    starts : list of Curve
    x : callable(Curve) -> ndarray
    y : str
        Column.
    skip : int
        First evaluations to leave out: the start lies far from all that follows.
    middle : callable
        ``numpy.median`` where one start may lie far from the others.
    """
    at, values, low, high = middle_and_range(starts, x, y, skip, middle)
    (line,) = axis.plot(at, values, **style)
    if len(starts) > 1:
        axis.fill_between(at, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def middle_and_range(starts, x, y, skip=0, middle=np.mean):
    """Mean (or what ``middle`` is), least and most of several starts at common places; a start that has ended counts with its last value.

    Returns
    -------
    at, middle, low, high : ndarray
    """
    pairs = [(np.asarray(x(curve), float)[skip:], curve[y][skip:]) for curve in starts]
    pairs = [(at[np.isfinite(value)], value[np.isfinite(value)]) for at, value in pairs]
    if len(pairs) == 1:
        at, values = pairs[0]
        return at, values, values, values
    common = np.unique(np.concatenate([at for at, _ in pairs]))
    common = common[common >= max(at[0] for at, _ in pairs)]
    table = np.array([np.interp(common, at, value) for at, value in pairs])
    return common, middle(table, axis=0), table.min(axis=0), table.max(axis=0)


def styles(names):
    """A colour and a dash a name."""
    return {
        name: {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 1.6}
        for i, name in enumerate(names)
    }


def bytes_on_top(axis):
    """A second scale for the bytes of a cost axis in values."""
    gigabytes = BYTES_A_VALUE / 1e9
    top = axis.secondary_xaxis("top", functions=(lambda values: values * gigabytes, lambda size: size / gigabytes))
    top.set_xlabel("GB (float64)")


def legend_below(axis, columns=2):
    """The axis's legend under its axis label, off the curves."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, frameon=False, fontsize=8.5)


def shared_legend(figure, axis, columns):
    """One legend for all axes, under them."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
