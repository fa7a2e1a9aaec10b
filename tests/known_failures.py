"""What does not hold yet: tests that are expected to fail, each with its reason.

A test listed here is run and may fail. `docs/limitations.md` tells users the same.
"""

KNOWN_FAILURES = {
    "test_a_number_among_the_constants_may_be_asked_for": (
        "Python numbers among the further arguments are traced, as `jax.jit` does: "
        "what asks for their type, text or exceptions sees a tracer"
    ),
    "test_a_large_python_integer_among_the_constants_does_not_overflow": (
        "Python numbers among the further arguments are traced"
    ),
    "test_python_integers_keep_all_their_digits_in_32_bits": (
        "Python numbers among the further arguments are traced"
    ),
    "test_an_array_that_jax_remembers_is_read_anew": (
        "an opaque function hands its NumPy arrays to JAX, which may remember them"
    ),
    "test_values_that_look_alike_are_told_apart[in_a_static_field": (
        "static fields of a captured module that are equal but of other types"
    ),
    "test_a_failed_trace_costs_one_trace_only": (
        "a function that raises and captures a list is run once more, as it is"
    ),
    "test_a_prepared_operator_holds_what_was_there": (
        "a few callables are not yet held as they were when prepared"
    ),
}
