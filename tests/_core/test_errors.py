"""A message has its four parts, each on its line."""

from hotk._core import message


def test_a_message_says_where_what_both_values_and_the_fix():
    text = message("hvp(f, x, v)", "no.", expected="f32[2]", got="f32[3]", fix="Cut v.")
    assert text.splitlines() == [
        "`hvp(f, x, v)`: no.",
        "  expected: f32[2]",
        "  got:      f32[3]",
        "Cut v.",
    ]


def test_what_came_may_be_a_table_below():
    text = message("f", "no.", expected="one", got="\n    a\n    b", fix="Do.")
    assert text.splitlines()[2:] == ["  got:", "    a", "    b", "Do."]
