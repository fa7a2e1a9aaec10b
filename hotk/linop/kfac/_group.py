"""Which sites are of the same entries, and which entries no site accounts for."""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ._find import ParameterUses
from ._site import OperationKind, Site
from ._view import LeafEntries, Part, View


Member: TypeAlias = tuple[Site, bool]
"""A site, and whether its inputs are the outputs of the first one of its group."""


@dataclasses.dataclass
class Group:
    """The sites of the same entries.

    Attributes:
        view: The entries.
        members: The sites.
        product: Whether they are products or tables, which have Kronecker factors.
        bias: The bias that all products have.
    """

    view: View
    members: list[Member]
    product: bool
    bias: View | None = None

    @property
    def views(self) -> list[View]:
        """All entries."""
        return [self.view] if self.bias is None else [self.view, self.bias]


class Direct(NamedTuple):
    """Entries of a leaf without a site.

    Attributes:
        entries: The entries.
        reason: The operation and the line of the model that use them otherwise; two
            empty texts if nothing uses them.
    """

    entries: Part
    reason: tuple[str, str]


def grouped(
    found: ParameterUses, shapes: Sequence[tuple[int, ...]]
) -> tuple[list[Group], list[Direct]]:
    """Put the sites of the same entries together.

    Entries that are used by several groups, or in other ways as well, are left to
    gradients of single examples, and so are all entries of such a group.

    Args:
        found: The sites and the other uses.
        shapes: The shapes of the leaves.
    """
    groups = _with_biases(_products(found.sites), found.sites)
    loose = [np.zeros(shape, bool) for shape in shapes]
    reasons: dict[int, tuple[str, str]] = {}
    for view, name, line in found.unmatched:
        if loose[view.leaf].size:
            loose[view.leaf].reshape(-1)[view.positions().reshape(-1)] = True
            reasons.setdefault(view.leaf, (name, line))
    used = [np.zeros(shape, np.int16) for shape in shapes]
    for group in groups:
        for view in group.views:
            view.take(used[view.leaf])[...] += 1
    for mask, count in zip(loose, used, strict=True):
        mask |= count > 1
    kept = _without_loose(groups, loose, reasons)
    covered = [np.zeros(shape, bool) for shape in shapes]
    for group in kept:
        for view in group.views:
            view.take(covered[view.leaf])[...] = True
    direct: list[Direct] = []
    for leaf, shape in enumerate(shapes):
        reason = reasons.get(leaf, ("used in several ways", ""))
        direct += _parts(leaf, shape, loose[leaf], reason)
        unused = np.asarray(~(loose[leaf] | covered[leaf]))
        direct += _parts(leaf, shape, unused, ("", ""))
    return kept, direct


def _products(sites: Iterable[Site]) -> list[Group]:
    """Group products by their entries; one may be the transpose of another."""
    groups: dict[Hashable, Group] = {}
    for site in sites:
        if site.kind not in (OperationKind.PRODUCT, OperationKind.TABLE):
            continue
        inputs, outputs = _role(site, 1), _role(site, 2)
        group = (site.view.leaf, site.view.offset, _heads(site.view), _role(site, 0))
        key = (group, frozenset((inputs, outputs)))
        if key in groups:
            first = groups[key].members[0][0]
            groups[key].members.append((site, inputs != _role(first, 1)))
        else:
            groups[key] = Group(site.view, [(site, False)], product=True)
    return list(groups.values())


def _role(site: Site, role: int) -> tuple[tuple[int, int], ...]:
    start = sum(site.roles[:role])
    view, stop = site.view, start + site.roles[role]
    axes = zip(view.shape[start:stop], view.strides[start:stop], strict=True)
    return tuple(axis for axis in axes if axis[0] != 1)


def _heads(view: View) -> tuple[tuple[int, int], ...]:
    return tuple(scan for scan in view.scans if scan[1])


def _with_biases(products: list[Group], sites: Iterable[Site]) -> list[Group]:
    """Join a bias to its products if all of them have it, and nothing else does."""
    alone: dict[Hashable, Group] = {}

    def add(view: View, site: Site) -> None:
        view = view.sorted()
        key = (view.leaf, view.offset, view.shape, view.strides, _heads(view))
        group = alone.setdefault(key, Group(view, [], product=False))
        group.members.append((site, False))

    for site in sites:
        if site.kind in (OperationKind.BIAS, OperationKind.SCALE):
            add(site.view, site)
    owners: dict[Hashable, int] = {}
    for group in products:
        views = [s.bias if not swapped else None for s, swapped in group.members]
        first = views[0]
        same = first is not None and all(v is not None and v == first for v in views)
        group.bias = first if same else None
        for key in {_entries_of(v) for s, _ in group.members if (v := s.bias)}:
            owners[key] = owners.get(key, 0) + 1
    for group in products:
        bias = group.bias
        if bias is not None:
            key = _entries_of(bias)
            used_alone = any(_entries_of(g.view) == key for g in alone.values())
            if owners[key] > 1 or used_alone:
                group.bias = None
        if group.bias is None:
            for site, _ in group.members:
                if site.bias is not None:
                    add(site.bias, site)
    return products + list(alone.values())


def _entries_of(view: View) -> Hashable:
    view = view.sorted()
    return view.leaf, view.offset, view.shape, view.strides, _heads(view)


def _without_loose(
    groups: list[Group],
    loose: list[np.ndarray],
    reasons: dict[int, tuple[str, str]],
) -> list[Group]:
    """Leave out groups with an entry that is used otherwise, until there are none."""
    kept = groups
    while True:
        is_loose = lambda g: any(v.take(loose[v.leaf]).any() for v in g.views)
        dropped = [group for group in kept if is_loose(group)]
        if not dropped:
            return kept
        kept = [group for group in kept if not is_loose(group)]
        for group in dropped:
            site = group.members[0][0]
            for view in group.views:
                reasons.setdefault(view.leaf, (site.name, site.line))
                view.take(loose[view.leaf])[...] = True


def _parts(
    leaf: int, shape: tuple[int, ...], mask: np.ndarray, reason: tuple[str, str]
) -> list[Direct]:
    if not mask.any():
        return []
    if mask.all():
        whole = View.whole(leaf, shape).reshaped((math.prod(shape),))
        assert whole is not None
        return [Direct(whole, reason)]
    return [Direct(LeafEntries.of(leaf, np.flatnonzero(mask)), reason)]
