"""What is drawn is what is meant: the artists hold the numbers known by hand."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk


matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

import hotk.plot  # noqa: E402


POINT = {"a": jnp.arange(1.0, 4.0), "b": {"c": jnp.array(2.0)}}
# The second derivatives of 2 c |a|^2 - c^2 at a = (1, 2, 3), c = 2.
HESSIAN = np.array([[8, 0, 0, 4], [0, 8, 0, 8], [0, 0, 8, 12], [4, 8, 12, -2.0]])


def energy(p):
    c = p["b"]["c"]
    return 2 * c * jnp.sum(p["a"] ** 2) - c**2


@pytest.fixture(autouse=True)
def figures_are_closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture
def operator():
    return hotk.HessianOperator(energy, POINT)


@pytest.fixture
def ax():
    import matplotlib.pyplot as plt

    return plt.figure().subplots()


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 1.0), ("float32", 1e-25)])
def test_operators_in_low_precision(dtype, unit):
    H = hotk.HessianOperator(
        lambda p: unit * (p["a"] @ p["a"] + 2 * p["b"] ** 2),
        {"a": jnp.ones(2, dtype), "b": jnp.ones((), dtype)},
    )
    ax = hotk.plot.matrix(H)
    ax.figure.canvas.draw()
    shown = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(shown, unit * np.diag([2.0, 2.0, 4.0]), rtol=1e-6)
    ax = hotk.plot.blocks(H)
    ax.figure.canvas.draw()
    shown = np.asarray(ax.images[0].get_array())
    norms = unit * np.diag([np.sqrt(8), 4.0])
    np.testing.assert_allclose(shown, norms, rtol=1e-6)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_matrix_shows_the_entries_with_the_paths_of_the_leaves(operator, ax, scale):
    assert hotk.plot.matrix(operator, scale=scale, ax=ax) is ax
    [image] = ax.images
    np.testing.assert_allclose(image.get_array(), HESSIAN)
    assert image.norm(0.0) == pytest.approx(0.5), "zero is in the middle: white"
    assert (image.norm.vmin, image.norm.vmax) == (-12, 12)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b/c"]
    np.testing.assert_allclose(ax.get_yticks(), [1, 3])
    lines = [line.get_xdata()[0] for line in ax.lines[1::2]]
    assert lines == [2.5], "leaves are parted"


def test_matrix_takes_arrays_and_what_is_zero_or_not_finite():
    image = hotk.plot.matrix(jnp.zeros((2, 2))).images[0]
    assert np.isfinite(image.norm.vmax)
    image = hotk.plot.matrix(np.array([[1, np.nan], [np.inf, -3]])).images[0]
    assert image.norm.vmax == 3
    assert hotk.plot.matrix(np.eye(2, dtype=int)).images[0].norm.vmax == 1


def test_no_entry_is_lost_between_the_pixels_of_a_large_matrix():
    diagonal = np.zeros((1001, 1001))
    diagonal[np.arange(1001), np.arange(1001)] = -2.0
    diagonal[1000, 0], diagonal[500, 700] = 3.0, np.nan
    ax = hotk.plot.matrix(diagonal, scale="linear")
    cells = ax.images[0].get_array().filled(np.nan)
    assert cells.shape == (334, 334), "three rows to a cell"
    assert (np.diagonal(cells) == -2).all()
    assert cells[333, 0] == 3
    assert np.isnan(cells[166, 233])
    assert np.nansum(cells != 0) == 334 + 2
    assert ax.images[0].get_extent() == [-0.5, 1000.5, 1000.5, -0.5]
    assert hotk.plot.matrix(np.eye(400)).images[0].get_array().shape == (400, 400)


def test_the_scale_is_logarithmic_where_entries_span_decades():
    from matplotlib.colors import SymLogNorm

    spread, even = np.diag(10.0 ** -np.arange(6)), np.diag(np.arange(1.0, 7.0))
    is_log = lambda *args, **kw: isinstance(
        hotk.plot.matrix(*args, **kw).images[0].norm, SymLogNorm
    )
    assert is_log(spread)
    assert not is_log(even)
    assert not is_log(spread, scale="linear")
    assert is_log(even, scale="log")
    with pytest.raises(ValueError, match="scale='logarithmic'"):
        hotk.plot.matrix(even, scale="logarithmic")


LONG = {f"encoder/block_{i}/attention/kernel": jnp.ones(2) for i in range(40)}


@pytest.mark.parametrize("draw", ["matrix", "blocks", "sparsity", "cost"])
def test_no_label_of_a_saved_figure_is_cut_off(draw):
    if draw == "cost":
        x = jnp.ones(2)
        product = hotk.hvp.prepare(lambda x: jnp.sum(x**3), x, x)
        ax = hotk.plot.cost({"a product of a name that is rather long": product})
    else:
        leaves = hotk.linop.Index.of(LONG)
        ax = getattr(hotk.plot, draw)(jnp.eye(80), leaves)
    figure = ax.figure
    figure.canvas.draw()
    page = figure.bbox
    ticks = [*ax.xaxis.get_major_ticks(), *ax.yaxis.get_major_ticks()]
    low, high = ax.viewLim.intervalx if draw == "cost" else (-np.inf, np.inf)
    seen = [t.label1 for t in ticks if low <= t.get_loc() <= high]
    for label in filter(lambda label: label.get_text(), [*seen, ax.xaxis.label]):
        box = label.get_window_extent()
        inside = box.x0 >= page.x0 and box.x1 <= page.x1
        assert inside, label.get_text()
        assert box.y0 >= page.y0, label.get_text()
        assert box.y1 <= page.y1, label.get_text()


def margins(figure, dpi):
    """Return how many pixels of a saved picture's border are not white."""
    import matplotlib.pyplot as plt

    stream = io.BytesIO()
    figure.savefig(stream, dpi=dpi)
    stream.seek(0)
    picture = plt.imread(stream)[..., :3].min(axis=-1)
    edges = picture[0], picture[-1], picture[:, 0], picture[:, -1]
    return [int((edge < 1).sum()) for edge in edges]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("draw", ["matrix", "log", "blocks", "sparsity"])
def test_no_pixel_of_a_saved_figure_touches_its_border(draw):
    """Few leaves of unequal names: a square image that leaves room beside it."""
    point = {"encoder/kernel": jnp.ones(200), "decoder_output/kernel": jnp.ones(75)}
    point |= {"hidden/kernel": jnp.ones(300), "hidden/bias": jnp.ones(15)}
    entries = np.random.default_rng(0).normal(size=(590, 590)) ** 5
    options = {"scale": "linear"} if draw == "matrix" else {}
    plot = getattr(hotk.plot, "matrix" if draw == "log" else draw)
    ax = plot(entries, hotk.linop.Index.of(point), **options)
    for dpi in (80, 100, 200):
        assert margins(ax.figure, dpi) == [0, 0, 0, 0], dpi


def test_names_of_small_leaves_give_way_to_those_of_large_ones():
    point = {f"{i:02}": jnp.ones(1) for i in range(40)} | {"large": jnp.ones(60)}
    index = hotk.linop.Index.of(point)
    ax = hotk.plot.matrix(jnp.eye(100), index)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["large"]


def test_blocks_are_the_norms_of_the_parts(operator, ax):
    assert hotk.plot.blocks(operator, ax=ax) is ax
    expected = [[np.sqrt(192), np.sqrt(224)], [np.sqrt(224), 2]]
    np.testing.assert_allclose(ax.images[0].get_array(), expected)
    assert [t.get_text() for t in ax.texts] == ["14", "15", "15", "2"]
    again = hotk.plot.blocks(jnp.asarray(HESSIAN), operator.index)
    np.testing.assert_allclose(again.images[0].get_array(), expected)


def test_sparsity_counts_what_is_not_zero(operator, ax):
    assert hotk.plot.sparsity(operator, ax=ax) is ax
    np.testing.assert_array_equal(ax.images[0].get_array(), HESSIAN != 0)
    assert ax.get_xlabel() == "10 of 16 entries (62.5 %)"
    ax = hotk.plot.sparsity(operator, tol=0.5)
    np.testing.assert_array_equal(ax.images[0].get_array(), abs(HESSIAN) > 6)


def test_patterns_and_sparse_matrices_with_a_pixel_for_each_entry(ax):
    dense = np.array([[1.0, 0, 0], [0.5, 0, np.nan]])
    rows, cols = [0, 0, 1, 1], [0, 1, 0, 2]
    A = hotk.SparseMatrix.from_coo([1.0, 0.0, 0.5, np.nan], rows, cols, (2, 3))
    assert hotk.plot.sparsity(A, ax=ax) is ax
    np.testing.assert_array_equal(ax.images[0].get_array(), dense != 0)
    assert ax.get_xlabel() == "3 of 6 entries (50 %)"
    image = hotk.plot.sparsity(A, tol=0.6).images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 0, 0], [0, 0, 1]])
    image = hotk.plot.sparsity(A.pattern).images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 1, 0], [1, 0, 1]])
    tree = hotk.sparsity(energy, POINT)
    ax = hotk.plot.sparsity(tree)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b/c"]
    np.testing.assert_allclose(ax.get_yticks(), [1, 3])
    empty = hotk.sparse.Pattern([], [], (0, 0))
    assert hotk.plot.sparsity(empty).get_xlabel() == "0 of 0 entries (0 %)"


def test_a_pattern_of_many_rows_is_counted_pixel_by_pixel():
    """A diagonal, an arrow's last row, and 250 rows for each pixel."""
    n = 100_000
    rows = np.concatenate([np.arange(n), np.full(n - 1, n - 1)])
    cols = np.concatenate([np.arange(n), np.arange(n - 1)])
    order = np.lexsort((cols, rows))
    pattern = hotk.sparse.Pattern(rows[order], cols[order], (n, n))
    ax = hotk.plot.sparsity(pattern)
    image = np.asarray(ax.images[0].get_array())
    assert image.shape == (400, 400)
    np.testing.assert_allclose(image.sum() * 250**2, pattern.nnz)
    np.testing.assert_allclose(np.diag(image)[:-1], 1 / 250)
    np.testing.assert_allclose(image[-1, :-1], 1 / 250)
    assert np.count_nonzero(image) == 2 * 400 - 1
    assert ax.get_ylim() == (n - 0.5, -0.5)


@pytest.mark.parametrize("draw", ["matrix", "blocks", "sparsity"])
def test_what_is_no_matrix_is_refused(draw):
    tree = hotk.hessian(energy, POINT)
    for wrong in (tree, jnp.ones(3), jnp.ones((2, 3))):
        with pytest.raises(hotk.StructureError, match="HessianOperator"):
            getattr(hotk.plot, draw)(wrong)


def test_blocks_of_an_array_need_an_index():
    with pytest.raises(hotk.StructureError, match="Index"):
        hotk.plot.blocks(jnp.eye(3))


def test_the_density_has_integral_one_and_peaks_at_the_eigenvalues(ax):
    # so many that the spectrum is estimated: that of a small matrix has no errors
    eigenvalues = np.repeat([1.0, 2.0, 2.0, 5.0], 64)
    f = lambda x: jnp.sum(jnp.asarray(eigenvalues) * x**2) / 2
    H = hotk.HessianOperator(f, jnp.zeros(256))
    found = hotk.estimate.spectrum(H, jax.random.key(1), samples=16)
    assert hotk.plot.spectral_density(found, width=0.1, ax=ax) is ax
    grid, density = ax.lines[0].get_data()
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-4), (
        "four widths are drawn"
    )
    bell = lambda t: np.exp(-((t / 0.1) ** 2) / 2) / (0.1 * np.sqrt(2 * np.pi))
    exact = np.mean([bell(grid - value) for value in eigenvalues], axis=0)
    np.testing.assert_allclose(density, exact, atol=0.1 * exact.max())
    band = ax.collections[0].get_paths()[0].vertices
    low, high = band[:, 1].min(), band[:, 1].max()
    assert low <= density.min()
    assert density.max() < high < 1.3 * density.max(), "two errors above the mean"
    assert ax.get_yscale() == "log"


def test_densities_of_several_operators_share_a_grid():
    key = jax.random.key(0)
    f = lambda x, c: c * jnp.sum(x**4)
    spectra = {
        str(c): hotk.estimate.spectrum(
            hotk.HessianOperator(f, jnp.arange(1.0, 6.0), c), key, samples=3
        )
        for c in (1.0, 10.0)
    }
    ax = hotk.plot.spectral_density(spectra, log=False)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["1.0", "10.0"]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), ax.lines[1].get_xdata())
    assert ax.lines[0].get_xdata()[0] < 12 < 3000 < ax.lines[0].get_xdata()[-1]


@pytest.mark.exhaustive
def test_one_start_and_one_eigenvalue_can_be_drawn():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.ones(3))
    found = hotk.estimate.spectrum(H, jax.random.key(0), samples=1)
    grid, density = hotk.plot.spectral_density(found).lines[0].get_data()
    assert np.isfinite(density).all()
    assert grid[np.argmax(density)] == pytest.approx(2, abs=0.01)


def test_eigenvalues_have_their_residuals_as_bars(ax):
    diagonal = jnp.arange(1.0, 31.0)
    H = hotk.HessianOperator(lambda x: jnp.sum(diagonal * x**2) / 2, jnp.ones(30))
    pairs = H.eigh(3)
    assert hotk.plot.eigenvalues(pairs, ax=ax) is ax
    [drawn] = ax.containers
    np.testing.assert_allclose(drawn.lines[0].get_ydata(), [28, 29, 30], rtol=1e-6)
    segments = drawn.lines[2][0].get_segments()
    half = [(s[1, 1] - s[0, 1]) / 2 for s in segments]
    np.testing.assert_allclose(half, pairs.residuals, rtol=1e-3, atol=1e-13)
    assert all(pairs.converged)
    assert len(ax.lines) == 4, "points, two kinds of caps and the axis: none hollow"


def test_a_surface_has_the_values_of_the_function(ax):
    directions = {"a": jnp.eye(3)[:2], "b": {"c": jnp.zeros(2)}}
    f = lambda p, c: energy(p) + c
    drawn = hotk.plot.surface(f, POINT, directions, 7.0, points=3, span=0.5, ax=ax)
    assert drawn is ax
    by_hand = lambda s, t: 4 * ((1 + s) ** 2 + (2 + t) ** 2 + 9) - 4 + 7
    corners = [by_hand(s, t) for s in (-0.5, 0.5) for t in (-0.5, 0.5)]
    filled = ax.collections[0]
    assert filled.zmin == pytest.approx(min(corners))
    assert filled.zmax == pytest.approx(max(corners))
    # the lowest corner is where both go back: along no other is it so low
    one = {"a": jnp.eye(3)[1:2], "b": {"c": jnp.zeros(1)}}
    line = hotk.plot.surface(f, POINT, one, 7.0, points=3, span=0.5).lines[0]
    np.testing.assert_allclose(line.get_xdata(), [-0.5, 0, 0.5])
    expected = [by_hand(0, t) for t in (-0.5, 0, 0.5)]
    np.testing.assert_allclose(line.get_ydata(), expected)


def test_directions_are_a_list_or_have_an_axis_in_front():
    first = {"a": jnp.eye(3)[0], "b": {"c": jnp.zeros(())}}
    second = {"a": jnp.eye(3)[1], "b": {"c": jnp.ones(())}}
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), first, second)
    draw = lambda directions: hotk.plot.surface(energy, POINT, directions, points=3)
    by_list, by_axis = draw([first, second]), draw(stacked)
    assert by_list.collections[0].zmin == by_axis.collections[0].zmin
    # 2 c |a|^2 - c^2 at c = 2, a_1 from 0 to 2
    line = draw((first,)).lines[0]
    np.testing.assert_allclose(line.get_ydata(), [48, 52, 64])
    # a list of arrays for a point that is a list is that with an axis in front
    f = lambda p: jnp.sum(p[0] ** 2) + jnp.sum(p[1] ** 2)
    point = [jnp.zeros(2), jnp.zeros(2)]
    leading = [jnp.ones((1, 2)), jnp.zeros((1, 2))]
    line = hotk.plot.surface(f, point, leading, points=3).lines[0]
    np.testing.assert_allclose(line.get_ydata(), [2, 0, 2])


def test_a_surface_over_other_data_compiles_nothing():
    from tests.counting import compiles

    x = jnp.ones(3)
    draw = lambda data: hotk.plot.surface(
        lambda x: jnp.sum(data * x**2), x, jnp.eye(3)[:1], points=5
    )
    draw(jnp.ones(3))
    other = 2 * jnp.ones(3)
    with compiles() as count:
        line = draw(other).lines[0]
    assert count() == 0
    np.testing.assert_allclose(
        line.get_ydata(), 4 + 2 * np.array([0, 0.25, 1, 2.25, 4])
    )


@pytest.mark.parametrize(
    "wrong", [jnp.ones(3), jnp.ones((3, 3)), jnp.ones((1, 2)), {"a": jnp.ones((1, 3))}]
)
def test_directions_that_do_not_fit_are_refused(wrong):
    with pytest.raises(hotk.StructureError, match=r"surface\(f, x, directions\)"):
        hotk.plot.surface(lambda x: jnp.sum(x**2), jnp.ones(3), wrong)


def test_a_point_with_static_leaves_can_be_moved_from():
    point = {"w": jnp.ones(2), "n": 3, "name": "net"}
    f = lambda p: p["n"] * jnp.sum(p["w"] ** 2)
    pairs = hotk.HessianOperator(f, point).eigh(1)
    line = hotk.plot.surface(f, point, pairs.vectors, points=3).lines[0]
    assert line.get_ydata()[1] == pytest.approx(6)


def test_traces_are_measured_from_the_best_value(ax):
    f = lambda x: jnp.sum((x - 1) ** 2) + 5
    found = hotk.optim.minimize(f, jnp.zeros(3), hotk.optim.newton())
    runs = {"newton": found, "by hand": np.array([9.0, 7.0, 6.0])}
    assert hotk.plot.traces(runs, ax=ax) is ax
    np.testing.assert_allclose(ax.lines[0].get_ydata()[0], 3)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [4, 2, 1])
    assert np.isnan(ax.lines[0].get_ydata()[-1]), "zero is on no scale of logarithms"
    assert ax.get_ylabel() == "value above 5"
    ax = hotk.plot.traces([3.0, 2.0], best=1.0)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [2, 1])


def test_cost_adds_up_to_the_seconds_of_info(ax):
    x = jnp.ones(3)
    product = hotk.hvp.prepare(lambda x: jnp.sum(jnp.sin(x)), x, x)
    assert hotk.plot.cost({"product": product}, ax=ax) is ax
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    info = product.info
    total = info.trace_seconds + info.lower_seconds + info.compile_seconds
    assert ends[-1] == pytest.approx(total)
    [label] = [t.get_text() for t in ax.get_yticklabels()]
    assert label.startswith("product: forward over reverse\n")


@pytest.mark.parametrize(
    ("draw", "wanted"),
    [
        ("spectral_density", "Spectrum"),
        ("eigenvalues", "Eigenpairs"),
        ("traces", "Minimum"),
        ("cost", "Prepared"),
    ],
)
def test_what_is_something_else_is_refused_by_name(draw, wanted):
    with pytest.raises(TypeError, match=f"'mine' is not .*`{wanted}`"):
        getattr(hotk.plot, draw)({"mine": 3})


def test_without_axes_new_ones_are_made_and_none_are_touched(operator):
    import matplotlib.pyplot as plt

    mine = plt.figure().subplots()
    assert hotk.plot.matrix(operator) is not mine
    assert not mine.has_data()


def test_runs_under_vmap_are_lines_of_their_own():
    ax = hotk.plot.traces({0: np.array([[3.0, 2.0], [5.0, 1.0]]), 1: [4.0, 3.0]})
    assert len(ax.lines) == 3
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [2, 1])
    names = [t.get_text() for t in ax.get_legend().get_texts()]
    assert names == ["0 0", "0 1", "1"]


def test_what_cannot_be_drawn_is_refused_in_words(operator):
    with pytest.raises(hotk.StructureError, match="real array"):
        hotk.plot.matrix(np.array([[1, 1j], [-1j, 1]]))
    with pytest.raises(hotk.StructureError, match="another matrix"):
        hotk.plot.blocks(np.eye(3), operator.index)
    for draw in (hotk.plot.cost, hotk.plot.eigenvalues, hotk.plot.spectral_density):
        with pytest.raises(TypeError, match="is empty"):
            draw({})
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, jnp.nan]))
    found = hotk.estimate.spectrum(H, jax.random.key(0), samples=2)
    with pytest.raises(ValueError, match="not finite"):
        hotk.plot.spectral_density(found)


def test_infinite_entries_are_part_of_a_pattern():
    array = np.array([[np.inf, 0.0], [np.nan, 2.0]])
    seen = hotk.plot.sparsity(array).images[0].get_array()
    np.testing.assert_array_equal(seen, [[True, False], [True, True]])
