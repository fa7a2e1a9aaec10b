"""The blocks of a model: from its program to matrices."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    ClosedJaxpr,
    Function,
    ModeError,
    OutputError,
    Point,
    RandomKey,
    describe_tree,
    leaf_name,
    message,
    placed_equations,
)
from hotk._dense import promoted
from hotk.curvature import AbstractLoss

from ._block import DenseBlock, DiagonalBlock, KroneckerBlock
from ._factor import Factor, nearest
from ._find import find
from ._gradients import direct_moments, second_moment, site_rows
from ._group import Direct, Group, grouped
from ._layout import AbstractBlock, BlockLayout, Origin
from ._moments import (
    Approximation,
    input_factor,
    joined,
    output_factor,
    positions_of,
)
from ._perturbed import Signals, Taps, run, signals
from ._site import OperationKind, Other, Site
from ._vectors import Estimate, curvature_vectors
from ._view import View


CALL = "KFACOperator(model, loss, x, *args)"

# A block without Kronecker factors is dense up to this size, diagonal beyond.
LARGEST_DENSE = 512

_ACROSS_DEVICES = frozenset(
    (
        *("psum", "psum_invariant", "pmax", "pmin", "ppermute", "all_gather"),
        *("all_gather_invariant", "all_to_all", "reduce_scatter", "axis_index"),
        *("shard_map", "pbroadcast", "ragged_all_to_all"),
    )
)


class KFACOptions(NamedTuple):
    """What a user chooses; see `hotk.KFACOperator`."""

    approximation: Approximation
    estimate: Estimate
    samples: int


class Rows(NamedTuple):
    """The further arguments of a model, of which arrays hold the examples.

    Attributes:
        arrays: Those with the examples in their first axis.
        shared: The others, `None` in the places of these.
    """

    arrays: PyTree
    shared: PyTree

    @staticmethod
    def of(args: PyTree) -> "Rows":
        """Sort arrays by whether they have an axis."""
        return Rows(*eqx.partition(args, lambda a: a.ndim > 0))

    def one(self, rows: PyTree) -> PyTree:
        """Return the arguments for one example, given its row of each array."""
        return eqx.combine(jax.tree.map(lambda a: a[None], rows), self.shared)


def blocks_of(
    model: Function,
    loss: AbstractLoss,
    x: Point,
    moving: Callable[[Point], PyTree],
    args: tuple[PyTree, ...],
    key: RandomKey | None,
    options: KFACOptions,
) -> tuple[AbstractBlock, ...]:
    """Return the blocks of the curvature of a model with a loss.

    Args:
        model: Function of the point and the further arguments.
        loss: The loss of its outputs.
        x: The arrays of the point.
        moving: From these to those that are differentiated, `None` elsewhere.
        args: The further arguments: arrays.
        key: A random key for samples.
        options: How the curvature is approximated.
    """
    rows = Rows.of(args)
    parameters = moving(x)
    paths, tree = jax.tree_util.tree_flatten_with_path(parameters)
    leaves = [leaf for _, leaf in paths]
    names = [leaf_name("", path) or "x" for path, _ in paths]

    def of_leaves(leaves: Sequence[Array], args: tuple[PyTree, ...]) -> PyTree:
        return model(eqx.combine(tree.unflatten(leaves), x), *args)

    first = jax.tree.map(lambda a: a[0], rows.arrays)
    one = rows.one(first)
    closed, shape = jax.make_jaxpr(of_leaves, return_shape=True)(leaves, one)
    _check_program(closed, shape)
    values = [
        View.whole(k, a.shape) if a.size else Other.FIXED for k, a in enumerate(leaves)
    ]
    varies = jax.tree.map(lambda a: Other.VARIES if a.ndim else Other.FIXED, one)
    found = find(closed, [*values, *jax.tree.leaves(varies)])
    groups, direct = grouped(found, [a.shape for a in leaves])
    sites = {s.path: s for group in groups for s, _ in group.members}

    def perturbed(taps: Taps, row: PyTree) -> tuple[Array, Taps]:
        given = [*leaves, *jax.tree.leaves(rows.one(row))]
        (z,), read = run(closed, given, sites, taps)
        return jnp.asarray(z)[0], read

    vectors = lambda z: curvature_vectors(
        loss, z, options.estimate, key, options.samples
    )
    seen = signals(perturbed, rows.arrays, list(sites.values()), vectors)
    w = loss.example_weights
    # Without any weight the loss is a sum of zeros, and so are all factors.
    share = None if w is None else w / jnp.where(jnp.any(w != 0), jnp.mean(w), 1)
    blocks = [_of_group(group, seen, names, options, share) for group in groups]
    run_one = lambda leaves, row: of_leaves(leaves, rows.one(row))[0]
    blocks += _of_rest(direct, run_one, leaves, rows.arrays, seen.vectors, names)
    first = lambda block: min(part.leaf for part in block.layout.parts)
    return tuple(sorted(blocks, key=first))


def _check_program(closed: ClosedJaxpr, shape: PyTree) -> None:
    for equation, line in placed_equations(closed.jaxpr):
        if equation.primitive.name in _ACROSS_DEVICES:
            raise ModeError(
                message(
                    CALL,
                    "the model computes across devices, and its examples are run one "
                    "by one.",
                    expected="a model of the examples alone",
                    got=f"`{equation.primitive.name}` at {line}",
                    fix="Leave `shard_map` and the sums over axes out of the model, "
                    "and give arguments that are sharded: JAX distributes the work.",
                )
            )
    if len(jax.tree.leaves(shape)) != 1 or jax.tree.structure(shape).num_nodes != 1:
        raise OutputError(
            message(
                CALL,
                "the model must return one array.",
                expected="outputs with the examples in their first axis",
                got=describe_tree(shape),
                fix="Return the outputs alone, without state or auxiliary results.",
            )
        )
    if not shape.shape or shape.shape[0] != 1:
        raise OutputError(
            message(
                CALL,
                "the outputs of one example must have one row.",
                expected="shape (1, ...) for arguments with one row",
                got=describe_tree(shape),
                fix="Let the model keep the examples in the first axis, whatever "
                "their number. For a model of one example write `jax.vmap(model, "
                "in_axes=(None, 0))`.",
            )
        )


def _of_group(
    group: Group,
    seen: Signals,
    names: Sequence[str],
    options: KFACOptions,
    share: Float[Array, " N"] | None,
) -> AbstractBlock:
    sites = [site for site, _ in group.members]
    origin = _origin(group.views, sites, names)
    if group.product:
        terms = _terms(group, seen, options, share)
        layout = BlockLayout(tuple(group.views), sites[0].sizes)
        A, G = nearest(terms)
        if sites[0].sizes[0] == 1:
            A, G = A.without_groups(), G.without_groups()
        return KroneckerBlock(layout, origin, A, G)
    rows: Any = 0
    for site in sites:
        rows = rows + site_rows(site, seen.read.get(site.path), seen.back[site.path])
    return _plain(BlockLayout((group.view,)), origin, rows)


def _terms(
    group: Group,
    seen: Signals,
    options: KFACOptions,
    share: Float[Array, " N"] | None,
) -> list[tuple[Factor, Factor]]:
    """Return the factors of rows and columns, one pair for each way of use."""
    ways: dict[tuple[bool, bool], list[Site]] = {}
    for site, swapped in group.members:
        ways.setdefault((swapped, site.kind is OperationKind.TABLE), []).append(site)
    terms = []
    for (swapped, table), sites in ways.items():
        each = [positions_of(s, seen.read[s.path], seen.back[s.path]) for s in sites]
        a, g = joined(each)
        bias = None if group.bias is None else group.bias.factor
        rows = sites[0].sizes[1] if table else None
        A = input_factor(
            a, options.approximation, dtype=g.dtype, rows=rows, bias=bias, share=share
        )
        G = output_factor(g, options.approximation)
        terms.append((G, A) if swapped else (A, G))
    return terms


def _plain(layout: BlockLayout, origin: Origin, rows: Array) -> AbstractBlock:
    dense = rows.shape[-1] <= LARGEST_DENSE
    moment = second_moment(rows, dense=dense)
    kind = DenseBlock if dense else DiagonalBlock
    return kind(layout, origin, moment)


def _of_rest(
    direct: Sequence[Direct],
    run_one: Callable[[Sequence[Array], PyTree], Array],
    leaves: Sequence[Array],
    rows: PyTree,
    vectors: Float[Array, "vectors N *outputs"],
    names: Sequence[str],
) -> list[AbstractBlock]:
    """Return the blocks of entries without a site."""
    used = [d for d in direct if d.reason != ("", "")]
    blocks: list[AbstractBlock] = []
    for entries, _ in (d for d in direct if d.reason == ("", "")):
        leaf = leaves[entries.leaf]
        wide = promoted(leaf.dtype, jnp.float32)
        zeros = jnp.zeros(entries.shape, wide)
        origin = Origin((names[entries.leaf],), (), ())
        blocks.append(DiagonalBlock(BlockLayout((entries,)), origin, zeros))
    if not used:
        return blocks
    dense = [math.prod(d.entries.shape) <= LARGEST_DENSE for d in used]
    concerned = sorted({d.entries.leaf for d in used})

    def run_some(some: Sequence[Array], row: PyTree) -> Array:
        every = list(leaves)
        for k, leaf in zip(concerned, some, strict=True):
            every[k] = leaf
        return run_one(every, row)

    some = [leaves[k] for k in concerned]
    places = [concerned.index(d.entries.leaf) for d in used]
    entries = [d.entries for d in used]
    moments = direct_moments(run_some, some, rows, vectors, entries, places, dense)
    for (part, reason), moment, whole in zip(used, moments, dense, strict=True):
        name, line = reason
        origin = Origin((names[part.leaf],), (name,), (line,) if line else ())
        kind = DenseBlock if whole else DiagonalBlock
        blocks.append(kind(BlockLayout((part,)), origin, moment))
    return blocks


def _origin(
    views: Sequence[View], sites: Sequence[Site], names: Sequence[str]
) -> Origin:
    once = lambda texts: tuple(dict.fromkeys(t for t in texts if t))
    return Origin(
        tuple(names[view.leaf] for view in views),
        once(site.name for site in sites),
        once(site.line for site in sites),
    )
