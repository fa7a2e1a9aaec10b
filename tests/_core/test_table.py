"""Tables of results, as a terminal and as a notebook show them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from hotk._core import AbstractReport, html_table, text_table


class Two(AbstractReport):
    cost: jax.Array

    def _rows(self):
        return [("cost", f"{float(self.cost):.1f}"), ("note", "<none>")]

    def _lines(self):
        return ["a line <below>"]


class Three(Two):
    _header = ("a", "b", "c")

    def _rows(self):
        return [("1", "2", "3")]


def test_columns_are_aligned_and_lines_end_without_spaces():
    table = text_table(["name", "n"], [["a", "10000"], ["longer", "2"]])
    assert table.splitlines() == [
        "name    n",
        "------  -----",
        "a       10000",
        "longer  2",
    ]


def test_a_table_without_rows_is_its_header():
    assert text_table(["a"], []) == "a\n-"


def test_html_is_escaped():
    assert html_table(["<"], [["&"]]) == (
        "<table><thead><tr><th>&lt;</th></tr></thead>"
        "<tbody><tr><td>&amp;</td></tr></tbody></table>"
    )


def test_a_report_of_two_columns_is_written_in_one_line():
    report = Two(jnp.asarray(2.0))
    assert repr(report) == "Two(cost: 2.0, note: <none>)"
    assert str(report).splitlines() == [
        "field  value",
        "-----  ------",
        "cost   2.0",
        "note   <none>",
        "a line <below>",
    ]
    assert report._repr_html_().endswith("<p>a line &lt;below&gt;</p>")


def test_a_wider_report_is_written_below_each_other():
    report = Three(jnp.asarray(2.0))
    assert repr(report) == str(report) == "a  b  c\n-  -  -\n1  2  3\na line <below>"


@pytest.mark.parametrize("show", [repr, str, Two._repr_html_])
def test_inside_of_a_transformation_a_report_shows_as_a_tree(show):
    seen = []
    jax.jit(lambda report: seen.append(show(report)) or 0)(Two(jnp.asarray(2.0)))
    assert eqx.tree_pformat(jnp.asarray(2.0)) in seen[0]
    assert "Two(" in seen[0]
