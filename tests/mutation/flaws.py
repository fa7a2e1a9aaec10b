"""The flaws: a text of hotk's source, what it becomes, and the tests that must notice.

The tests of a flaw are few, so that a run is quick; they are those whose claim the flaw
breaks, not all that would fail.
"""

from typing import NamedTuple


class Flaw(NamedTuple):
    """One text in one file, replaced by another."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def stale(*stories: str) -> tuple[str, ...]:
    """Name the stories of promise 1 that are told to direct calls."""
    test = "tests/promises/test_never_stale.py::test_a_direct_call_sees_what_changed"
    return tuple(f"{test}[{story}]" for story in stories)


def within(file: str, *tests: str) -> tuple[str, ...]:
    """Name tests of one file."""
    return tuple(f"tests/{file}.py::test_{test}" for test in tests)


WALK = "hotk/_capture/_walk.py"
ARRAYS = "hotk/_capture/_arrays.py"
CALLABLES = "hotk/_capture/_callables.py"
CLASSES = "hotk/_capture/_classes.py"
CODE = "hotk/_capture/_code.py"
FUNCTIONS = "hotk/_capture/_functions.py"
LAYOUT = "hotk/_capture/_layout.py"
MAPPINGS = "hotk/_capture/_mappings.py"
NODES = "hotk/_capture/_nodes.py"
OBJECTS = "hotk/_capture/_objects.py"
PARTS = "hotk/_capture/_parts.py"
SEARCH = "hotk/linop/_search.py"
REBUILD = "hotk/_capture/_rebuild.py"
VALUES = "hotk/_capture/_values.py"
WRITER = "hotk/_capture/_writer.py"
FINGERPRINT = "hotk/_core/_fingerprint.py"
CALL = "hotk/_prepared/_call.py"
JOINED = "hotk/_prepared/_joined.py"
CHECKS = "hotk/_prepared/_checks.py"
PROGRAM = "hotk/_prepared/_program.py"
STORE = "hotk/_prepared/_store.py"
TRACED = "hotk/_prepared/_traced.py"
MOMENTS = "hotk/linop/kfac/_moments.py"
PATCHES = "hotk/linop/kfac/_match.py"
KFAC_STEP = "hotk/optim/_kfac_step.py"

FACTORS = "linop/kfac/test_factors"
FILTERS = "reliability/test_leaf_filters"
INPUTS_TESTS = "reliability/test_inputs"
LEAKS_TESTS = "reliability/test_leaks"
ONE_PROGRAM = "promises/test_one_program"
RULES_TESTS = "reliability/test_rules_made_in_calls"

_KEY = [
    Flaw(
        "the key drops the type of a static value",
        VALUES,
        '        d.same("type({0}) is {1} and {0} == {2}", here, cls, value)\n'
        "\n\nSTATIC",
        '        d.same("{0} == {1}", here, value)\n\n\nSTATIC',
        stale(
            "the_static_fields_of_modules_look_alike",
            "what_was_added_to_the_builtins_is_mutated",
        ),
    ),
    Flaw(
        "the key does not tell the two zeros apart",
        VALUES,
        "    if value and not math.isnan(value):",
        "    if not math.isnan(value):",
        stale(
            "the_static_fields_of_modules_look_alike",
            "what_was_added_to_the_builtins_is_mutated",
        ),
    ),
    Flaw(
        "the key drops the imaginary part",
        VALUES,
        "return value.real.hex(), value.imag.hex()",
        "return (value.real.hex(),)",
        within("promises/test_never_stale", "values_that_look_alike_are_told_apart"),
    ),
    Flaw(
        "the key drops the value of a NumPy scalar",
        VALUES,
        "return value.dtype.str, value.tobytes()",
        "return (value.dtype.str,)",
        stale("a_numpy_scalar_has_another_type")
        + within("promises/test_never_stale", "values_that_look_alike_are_told_apart"),
    ),
    Flaw(
        "what a library keeps is copied for a trace",
        REBUILD,
        "        if is_library_function(value):\n            return False\n"
        "        if value.__dict__ and not facts_of(value.__code__).library:\n",
        "        if value.__dict__:\n",
        within("capture/test_kinds", "functions_of_jax_by_name_are_on_the_fast_path"),
    ),
    Flaw(
        "the key drops the name of an enum member",
        CLASSES,
        "    d.note((cls, value.name, number))\n",
        "    d.note(cls)\n",
        stale("another_member_of_an_enum_is_captured"),
    ),
    Flaw(
        "the key ignores the order of a dict",
        MAPPINGS,
        "    entries = list(value.items())  #",
        "    entries = sorted(value.items())  #",
        stale("a_dict_of_weights_is_walked_in_its_order"),
    ),
    Flaw(
        "the order of a dict among the constants is ignored",
        CALL,
        "        return args if self.orders is None else in_orders(args, self.orders)",
        "        return args",
        stale("a_dict_that_is_a_constant_argument_is_walked_in_its_order"),
    ),
    Flaw(
        "cells are not described",
        FUNCTIONS,
        '        describe_read(d, content, reads, " cell `{}`", name, '
        "cells, read, i)\n",
        "        del content, reads, read\n",
        stale("a_fresh_closure_holds_another_float"),
    ),
    Flaw(
        "keyword defaults are not described",
        FUNCTIONS,
        "value.__defaults__ or (), value.__kwdefaults__ or {}\n    own",
        "value.__defaults__ or (), {}\n    own",
        stale("a_keyword_default_is_mutated_or_replaced"),
    ),
    Flaw(
        "defaults are not visited",
        FUNCTIONS,
        "in enumerate(defaults):\n        name =",
        "in enumerate(defaults[:0]):\n        name =",
        stale("a_default_argument_is_mutated_or_replaced"),
    ),
    Flaw(
        "globals are not described",
        FUNCTIONS,
        "    if facts.globals:\n        _describe",
        "    if False:\n        _describe",
        stale("a_global_is_bound_again"),
    ),
    Flaw(
        "globals of nested functions are not visited",
        CODE,
        "                self._read(constant, outer, names, chains, escaping, imports)",
        "                pass",
        stale("a_global_is_read_inside_an_inner_scope"),
    ),
    Flaw(
        "keywords of a partial are not described",
        CALLABLES,
        "    describe_dict(d, value.keywords, "
        'd.let(value.keywords, "{0}.keywords", here))\n',
        "",
        stale("a_partial_holds_keywords"),
    ),
    Flaw(
        "the object of a bound method is not described",
        CALLABLES,
        '    describe_read(d, value.__self__, reads, ".{}", "__self__", '
        "here, ATTRIBUTE)\n",
        "    d.note(type(value.__self__))\n",
        stale("the_bound_method_of_another_object"),
    ),
    Flaw(
        "static fields of a module are not described",
        NODES,
        '                _describe_static(d, own[name], space, name, ".{}", name)\n',
        "                pass\n",
        stale(
            "the_static_fields_of_modules_look_alike",
            "a_static_field_is_an_object_that_is_changed",
        ),
    ),
    Flaw(
        "two captures of one array are like captures of two",
        WALK,
        "            self.key.append(_SEEN)\n            self.key.append(known[0])\n",
        "            self.key.append(_SEEN)\n",
        within("capture/test_guards", "which_array_is_met_again_is_part_of_the_key"),
    ),
    Flaw(
        "a function that writes is like one that does not",
        FUNCTIONS,
        '        raise cause.opaque(f"it writes {facts.writes}")',
        "        pass",
        stale("a_call_binds_a_global"),
    ),
    Flaw(
        "what a function changes among its captures goes unseen",
        CALL,
        "            if not is_same():",
        "            if False:",
        stale("a_call_appends_to_a_captured_list", "a_call_sets_an_attribute"),
    ),
    Flaw(
        "an array needed as a value is known without its content",
        ARRAYS,
        'return ("content", data.shape, data.dtype.str, weak, form, content)',
        'return ("content", data.shape, data.dtype.str, weak, form)',
        stale("a_captured_array_is_asked_for_its_value"),
    ),
    Flaw(
        "literals of a program are not compared",
        FINGERPRINT,
        'return ("literal", literal.aval, content(literal.val))',
        'return ("literal", literal.aval)',
        within(
            ONE_PROGRAM, "a_number_in_a_program_that_a_primitive_keeps_is_told_apart"
        ),
    ),
    Flaw(
        "parameters of a program are not compared",
        FINGERPRINT,
        "            self.parameter(equation.params[name], (*path, name))\n",
        "",
        within(
            "reliability/test_functions",
            "opaque_functions_of_other_programs_are_told_apart",
        ),
    ),
    Flaw(
        "a function is traced once for all default generators",
        CALL,
        "        stage = (int(self.static_arrays), unkeyed_setting())",
        "        stage = (int(self.static_arrays), None)",
        within(
            "reliability/test_configuration",
            "random_numbers_follow_the_default_generator",
            "a_derivative_rule_follows_the_default_generator",
        ),
    ),
    Flaw(
        "a direct call asks by another key than its trace",
        "hotk/_prepared/_operator.py",
        "known = (options, shape, castable, orders, setting, 0, *placed, *key)",
        "known = (options, shape, castable, None, setting, 0, *placed, *key)",
        within(
            "prepared/test_direct_calls",
            "the_key_holds_the_arguments_as_the_trace_does",
        ),
    ),
    Flaw(
        "a Prepared does not look at dtypes",
        "hotk/_capture/_signature.py",
        "        return Aval(aval.shape, aval.dtype, weak, split, varying)",
        "        return Aval(aval.shape, None, weak, split, varying)",
        within("promises/test_mismatch_is_loud", "one_field_that_differs_is_marked"),
    ),
    Flaw(
        "a Prepared does not look at weak types",
        "hotk/_capture/_signature.py",
        "        return Aval(aval.shape, aval.dtype, weak, split, varying)",
        "        return Aval(aval.shape, aval.dtype, False, split, varying)",
        within("promises/test_mismatch_is_loud", "one_field_that_differs_is_marked"),
    ),
]

_MEMORY = [
    Flaw(
        "NumPy arrays are not copied",
        ARRAYS,
        "    return np.array(array, dtype="
        "jax.dtypes.canonicalize_dtype(array.dtype), copy=True)",
        "    return np.asarray(array, dtype="
        "jax.dtypes.canonicalize_dtype(array.dtype))",
        within(
            INPUTS_TESTS,
            "numpy_arguments_may_be_overwritten_as_soon_as_the_call_returns",
        )
        + within(
            "reliability/test_configuration",
            "a_numpy_array_mutated_after_a_call_in_single_precision_is_not_stale",
        ),
    ),
    Flaw(
        "what is known by itself is kept alive by the key",
        WALK,
        "        self.key.append(weakref.ref(value))\n",
        "        self.key.append(value)\n",
        within(
            LEAKS_TESTS,
            "a_jitted_function_that_is_known_by_itself_dies",
            "a_captured_class_dies",
        ),
    ),
    Flaw(
        "the class of an object is kept alive by the key",
        PARTS,
        "    d.note(weakref.ref(cls), *map(",
        "    d.note(cls, *map(",
        within(LEAKS_TESTS, "a_class_made_on_the_way_dies"),
    ),
    Flaw(
        "tracers stay in the rebuilt cells",
        REBUILD,
        "                cell.cell_contents = EndedTracer()\n",
        "                pass\n",
        within(LEAKS_TESTS, "no_tracer_waits_for_the_collector"),
    ),
    Flaw(
        "the cache has no bound",
        STORE,
        "            while len(ages) > 1 and (",
        "            while False and (",
        within(
            "promises/test_bounded_memory",
            "the_cache_is_bounded_and_right_after_eviction",
        ),
    ),
    Flaw(
        "the signatures of one function have no bound",
        STORE,
        "len(ages) > entries",
        "len(self.entries) > entries",
        within(
            "promises/test_bounded_memory", "one_function_of_many_shapes_is_bounded"
        ),
    ),
    Flaw(
        "a program that is only run is differentiated",
        STORE,
        "                found.shared = runner is not found.program\n",
        "",
        within(
            "promises/test_one_program",
            "an_operator_beside_a_derivative_rule_has_its_own_derivatives",
        ),
    ),
    Flaw(
        "what was used last goes first",
        STORE,
        "_, table, key = ages.pop()",
        "_, table, key = ages.pop(0)",
        within("promises/test_bounded_memory", "what_was_used_last_stays"),
    ),
    Flaw(
        "the budget is not looked at",
        "hotk/_prepared/_budget.py",
        "    if needed > budget:",
        "    if False:",
        within(
            "promises/test_bounded_memory",
            "the_refusal_comes_before_anything_is_traced_or_allocated",
        ),
    ),
    Flaw(
        "a program runs whatever it is called with",
        "hotk/_prepared/_traced_jit.py",
        "            check(arrays)\n",
        "",
        within("promises/test_mismatch_is_loud", "one_field_that_differs_is_marked"),
    ),
    Flaw(
        "a program that holds tracers of the outside is kept",
        TRACED,
        "    if program.lifted:\n        return program\n",
        "",
        within(
            "optim/test_derivatives",
            "a_run_that_goes_on_has_the_derivatives_of_its_minimum",
        ),
    ),
    Flaw(
        "every thread compiles",
        PROGRAM,
        "            if self.compiled is not None:\n                return False\n"
        "            start",
        "            start",
        within(
            "reliability/test_threads",
            "threads_racing_for_the_first_call_compile_once",
        ),
    ),
    Flaw(
        "a failed trace stays",
        TRACED,
        "        program = own_program(call, types, trace_function(call), placed)\n",
        "        STORE.entry(call.store_key)\n"
        "        program = own_program(call, types, trace_function(call), placed)\n",
        within(
            "reliability/test_recovery",
            "a_failed_trace_inside_a_jit_leaves_nothing_behind",
            "a_refused_output_leaves_nothing_behind",
        ),
    ),
]

_NUMBERS = [
    Flaw(
        "the unit direction has a wrong offset",
        "hotk/_dense/_block.py",
        "        here = jax.lax.iota(jnp.int32, leaf.size) == index - offset",
        "        here = jax.lax.iota(jnp.int32, leaf.size) == index",
        within(
            "promises/test_any_tree",
            "the_other_forms_of_a_tree_of_two_arrays_are_as_by_hand",
        ),
    ),
    Flaw(
        "the seeds of a column have a wrong offset",
        "hotk/_dense/_columns.py",
        "        offset += leaf.size\n        seeds.append(here.astype",
        "        seeds.append(here.astype",
        within(
            "promises/test_any_tree",
            "a_dense_hessian_over_a_tree_is_a_tree_of_trees",
        ),
    ),
    Flaw(
        "the last block is at a wrong place",
        "hotk/_dense/_columns.py",
        "jnp.minimum(jnp.asarray(step, jnp.int32) * width, n - width)",
        "jnp.minimum(jnp.asarray(step, jnp.int32) * width, n - width - 1)",
        within(
            "promises/test_bounded_memory",
            "blocks_of_any_size_give_the_same_hessian",
        ),
    ),
    Flaw(
        "the complex gradient is conjugated once too often",
        "hotk/_mode/_first.py",
        "jax.lax.complex(re, -im)",
        "jax.lax.complex(re, im)",
        within(INPUTS_TESTS, "complex_parameters_in_all_modes"),
    ),
    Flaw(
        "the quadratic form forgets the product",
        "hotk/_mode/_first.py",
        "lambda p, q: jnp.sum(p * q).real",
        "lambda p, q: jnp.sum(p * p).real",
        within("second/test_quadratic_form", "is_the_direction_twice_on_the_hessian"),
    ),
    Flaw(
        "a tangent is dropped",
        "hotk/_mode/_first.py",
        "        return jax.jvp(f, (x,), (v,), has_aux=True)",
        "        first, *rest = jax.tree.leaves(v)\n"
        "        v = jax.tree.structure(v).unflatten("
        "[first, *(jnp.zeros_like(leaf) for leaf in rest)])\n"
        "        return jax.jvp(f, (x,), (v,), has_aux=True)",
        within(INPUTS_TESTS, "a_tree_with_a_float_an_integer_and_an_array"),
    ),
    Flaw(
        "a cotangent has twice its size",
        "hotk/_mode/_first.py",
        "        return y, pull(jnp.ones_like(y))[0], aux",
        "        return y, pull(2 * jnp.ones_like(y))[0], aux",
        within(INPUTS_TESTS, "a_floating_dtype_is_kept"),
    ),
    Flaw(
        "broadcastable directions are taken",
        CHECKS,
        "    if (shape[1:] if batched else shape) != want.shape or "
        "(batched and not shape):",
        "    if len(shape) > 9:",
        within(
            INPUTS_TESTS,
            "a_direction_of_another_shape_is_refused_and_its_leaf_named",
        ),
    ),
    Flaw(
        "directions of another dtype are cast",
        CHECKS,
        "    if id(part) in castable and jnp.can_cast(_widest(dtype), _widest("
        "want.dtype)):",
        "    if True:",
        within(
            INPUTS_TESTS,
            "a_direction_of_another_dtype_is_refused_and_its_leaf_named",
        ),
    ),
    Flaw(
        "loops have no mode",
        "hotk/_mode/_auto.py",
        "        return [cheapest, for_loops, for_custom_vjp, last]\n"
        "    return [cheapest, for_custom_vjp, for_loops, last]",
        "        return [cheapest, for_custom_vjp, last]\n"
        "    return [cheapest, for_custom_vjp, last]",
        within("reliability/test_functions", "a_while_loop_is_differentiated_forward"),
    ),
    Flaw(
        "custom rules are run without their order",
        "hotk/_mode/_auto.py",
        "        return [cheapest, for_loops, for_custom_vjp, last]\n"
        "    return [cheapest, for_custom_vjp, for_loops, last]",
        "        return [for_loops]\n    return [for_loops]",
        within("primitive/test_custom_vjp", "auto_says_what_it_derived"),
    ),
]

GUARDS_TESTS = "capture/test_guards"

_GUARDS = [
    Flaw(
        "a guard does not ask for the code of a captured function",
        FUNCTIONS,
        '        d.ask("{0}.__code__ is {1}", here, code)',
        "        pass",
        stale("a_captured_function_is_another_one"),
    ),
    Flaw(
        "a guard does not ask for defaults",
        FUNCTIONS,
        '        d.ask(f"not ({{0}}.__defaults__ or {{0}}.__kwdefaults__{attributes})"'
        ", here)\n",
        "        del attributes\n",
        within(GUARDS_TESTS, "a_guard_sees_defaults_code_attributes_and_globals"),
    ),
    Flaw(
        "a guard takes equal numbers for the same",
        VALUES,
        '        d.same("type({0}) is {1} and {0} == {2}", here, float, value)',
        '        d.same("{0} == {2}", here, float, value)',
        within(GUARDS_TESTS, "a_guard_refuses_what_is_not_the_same"),
    ),
    Flaw(
        "a guard does not tell two arrays apart",
        WRITER,
        "        self._ask_distinct()\n        body",
        "        body",
        within(
            GUARDS_TESTS,
            "a_guard_refuses_what_is_not_the_same",
            "a_guard_sees_that_two_arrays_are_no_longer_one",
        ),
    ),
    Flaw(
        "a guard does not look for a builtin among the globals",
        FUNCTIONS,
        '            d.ask("{1} not in {0}", names, name)\n            _',
        "            _",
        within(GUARDS_TESTS, "a_guard_sees_defaults_code_attributes_and_globals"),
    ),
    Flaw(
        "a guard does not ask for the names in a class",
        CLASSES,
        '    d.ask("[*{0}] == {1}", space, list(vars(base)))\n',
        "",
        within(GUARDS_TESTS, "a_guard_sees_what_changes_in_a_class_and_in_an_object"),
    ),
    Flaw(
        "the static data of a tree's nodes are not described",
        NODES,
        "        _describe_static(d, data, here, 1)\n",
        "        pass\n",
        within(GUARDS_TESTS, "a_guard_sees_the_static_fields_of_modules_in_the_point"),
    ),
    Flaw(
        "a guard keeps what is known by itself alive",
        WRITER,
        'self.same("{0} is not None and {0} is {1}()", here, weakref.ref(value))',
        'self.same("{0} is {1}", here, value)',
        within(GUARDS_TESTS, "a_guard_keeps_nothing_of_the_user_alive"),
    ),
    Flaw(
        "complex outputs lose their imaginary part",
        "hotk/_mode/_first.py",
        "        if is_complex(y) and not is_complex(x):",
        "        if False:",
        within("mode/test_complex_outputs", "first_order", "second_order"),
    ),
    Flaw(
        "a Prepared runs its program as it was under the types of shard_map",
        "hotk/_prepared/_prepared.py",
        "        if skeleton.opaque is not None:\n            assert",
        "        if True:\n            assert",
        within("promises/test_fixed_before_traced", "it_works_under_shard_map"),
    ),
]

FAMILY = "hotk/_prepared/_family.py"
CANONICAL = "hotk/_core/_canonical.py"
LOUD_TESTS = "prepared/test_opaque_is_loud"

_SHARED = [
    Flaw(
        "static fields of nodes are no part of an exported program",
        "hotk/_exported/_load.py",
        "check_nodes(called, self._statics, (args, named))",
        "pass",
        within("exported/test_node_statics", "another_static_field_is_refused"),
    ),
    Flaw(
        "rows with another integer in them are the same",
        "hotk/curvature/_sample_rows.py",
        "(form.key, *(n.bits for f, n in pairs if not f))",
        "(form.key,)",
        within(
            "promises/test_numbers_in_curvature",
            "functions_that_differ_in_a_number_have_one_form_and_in_an_index_two",
        ),
    ),
    Flaw(
        "numbers that are no arguments are taken for equal",
        FAMILY,
        "tuple((i, number.bits) for i, number in numbers if i not in opened)",
        "tuple((i, number.kind) for i, number in numbers if i not in opened)",
        within(ONE_PROGRAM, "numbers_are_told_apart_bit_by_bit"),
    ),
    Flaw(
        "captured arrays go into a shared program as they were captured",
        FAMILY,
        "self.places = (*member.form.inputs, *range(",
        "self.places = (*sorted(member.form.inputs), *range(",
        within(ONE_PROGRAM, "arrays_in_another_order_are_not_mixed_up"),
    ),
    Flaw(
        "unused arrays are arguments of a shared program",
        CANONICAL,
        "    reader.equations(jaxpr, _NumberedAtFirstUse(number, places, reader))\n",
        "    lazy = _NumberedAtFirstUse(number, places, reader)\n"
        "    used = [lazy[variable] for variable in places]\n"
        "    reader.equations(jaxpr, lazy)\n",
        within(ONE_PROGRAM, "unused_arrays_are_left_out"),
    ),
    Flaw(
        "functions with other rules share a program",
        CANONICAL,
        "            key.append(self.rule_key(equation))\n",
        "            pass\n",
        within(ONE_PROGRAM, "equal_bodies_with_other_rules_are_other_functions"),
    ),
    Flaw(
        "settings and named axes are in no key",
        "hotk/_core/_compat.py",
        "    return (*_config.trace_context(), _config.default_prng_impl.value)",
        "    return (_config.default_prng_impl.value,)",
        within(
            "reliability/test_configuration",
            "a_named_axis_has_the_size_of_the_call",
            "threefry_that_is_partitionable_gives_other_numbers_at_once",
        ),
    ),
]

_TOLD = [
    Flaw(
        "an opaque function is told of at each call",
        "hotk/_prepared/warnings/_opaque_functions.py",
        "        known.warned = True\n    place =",
        "        pass\n    place =",
        within(LOUD_TESTS, "the_second_trace_warns_and_no_other_does"),
    ),
    Flaw(
        "signatures of an opaque function are not told apart",
        "hotk/_prepared/warnings/_opaque_functions.py",
        "    number = signature()  # may",
        "    number = 0  # may",
        within(LOUD_TESTS, "what_would_be_traced_once_each_is_not_told_of"),
    ),
    Flaw(
        "explain does not look at what calls came to",
        "hotk/_prepared/_explain.py",
        '        stage, cause = _remembered(f) or (None, OpaqueReason(""))',
        '        stage, cause = (None, OpaqueReason(""))',
        within(
            "prepared/test_explain", "a_function_that_was_called_is_known_by_its_call"
        ),
    ),
    Flaw(
        "a miss takes its place from the one before",
        "hotk/_prepared/_reasons.py",
        "    if previous is not None and previous.piece != same - header:\n"
        "        previous = None\n",
        "",
        within(
            "prepared/test_changing_values",
            "several_places_are_told_of_one_by_one",
        ),
    ),
    Flaw(
        "a value that comes again counts as a new one",
        "hotk/_prepared/warnings/_opaque_functions.py",
        "            known.values.update(dict.fromkeys(values))\n",
        "            known.values[str(len(known.values))] = None\n",
        within("prepared/test_changing_values", "values_that_come_again_are_not_new"),
    ),
]

_KINDS = [
    Flaw(
        "a function of a library counts as one that may be written into",
        REBUILD,
        "        if is_library_function(value):\n            return False\n",
        "        if value.__dict__:\n            return True\n",
        within(
            "capture/test_kinds",
            "functions_of_jax_by_name_are_on_the_fast_path[vmap-asarray0]",
        ),
    ),
    Flaw(
        "the options of a jitted function are not compared",
        "hotk/_capture/_jitted.py",
        "    d.note(options)\n",
        "",
        within("capture/test_kinds", "a_fresh_jitted_function_is_looked_through")
        + stale("two_fresh_jitted_functions_have_other_options"),
    ),
    Flaw(
        "a jitted function keeps what JAX remembers of it",
        REBUILD,
        "    return mutable or any(map(_is_seen_jitted, (node, *node.parents)))",
        "    return mutable",
        within(
            "capture/test_kinds",
            "a_number_that_a_jitted_function_reads_is_read_as_it_is_now",
        ),
    ),
    Flaw(
        "what was attempted in vain stays among the captured arrays",
        WALK,
        "                del part[length:]\n",
        "                del part[len(part) :]\n",
        within(
            "capture/test_kinds",
            "what_was_attempted_inside_a_jitted_function_leaves_nothing",
        ),
    ),
    Flaw(
        "memory of C is not seen",
        LAYOUT,
        "    return cls.__basicsize__ == base.__basicsize__ + words * _WORD",
        "    return True",
        within("capture/test_kinds", "memory_beyond_attributes_is_seen"),
    ),
    Flaw(
        "constants of a library are copied and compared by content",
        OBJECTS,
        "    return any(constant is value for constant in _constants_of(type(value)))",
        "    return False",
        stale("a_constant_of_a_library_is_another_one"),
    ),
    Flaw(
        "private slots are not read",
        LAYOUT,
        "if type(item) is _MEMBER]",
        "if type(item) is _MEMBER and name in vars(cls)['__slots__']]",
        within("capture/test_kinds", "a_private_slot_is_on_the_fast_path"),
    ),
    Flaw(
        "a moment is known without its zone",
        VALUES,
        '    d.attribute(value, "tzinfo", here)\n',
        "",
        within("capture/test_kinds", "values_that_are_alike_have_other_keys[moments]"),
    ),
    Flaw(
        "a deque is known without its greatest length",
        "hotk/_capture/_sequences.py",
        '    d.same("{0}.maxlen == {1}", here, value.maxlen)\n',
        "",
        within("capture/test_kinds", "values_that_are_alike_have_other_keys[lengths]"),
    ),
]

READS = "hotk/_capture/_reads.py"
REFLECTION = "hotk/_capture/_reflection.py"

_SOLVERS = [
    Flaw(
        "what is not a number is that of the first batch",
        "hotk/linop/_source.py",
        "            if not is_same(old, new):",
        "            if not isinstance(old, object):",
        within("linop/test_batches", "what_is_no_number_is_that_of_all_batches"),
    ),
    Flaw(
        "a program is called with other shapes",
        "hotk/_capture/_traced_program.py",
        "        if [a.shape for a in shapes] != [np.shape(a) for a in leaves]:",
        "        if len(shapes) != len(leaves):",
        within(
            "linop/test_batches",
            "a_loss_that_is_kept_as_a_program_is_right_or_refused",
        ),
    ),
    Flaw(
        "a program of the first batch serves the others",
        "hotk/linop/_batches.py",
        "            with other_types():\n                operators = make()",
        "            operators = make()",
        within(
            "linop/test_batches",
            "batches_of_other_lengths_beside_numbers_that_change",
        ),
    ),
    Flaw(
        "unit directions move the points of all devices",
        "hotk/_prepared/_one_device.py",
        "        modes = [each for each in modes if "
        "_keeps_points_apart(definition, each[0])]",
        "        modes = [*modes]",
        within(
            "prepared/test_one_device",
            "points_that_differ_by_device_and_a_function_that_adds_over_them",
        ),
    ),
    Flaw(
        "unit vectors of a matrix are made on each device",
        "hotk/linop/_dense.py",
        "        parts = _held_alike(space.parts(like))",
        "        parts = space.parts(like)",
        within(
            "prepared/test_one_device",
            "points_that_differ_by_device_and_a_function_that_adds_over_them",
        ),
    ),
    Flaw(
        "scores of divided examples are added",
        "hotk/statistics/_examples.py",
        "        refuse_parts_of_devices(self.call, self.values, self.parameters)\n"
        "        x, where = self.x, self.where\n"
        "        if self.by_rows:\n            of_one = lambda one, row: gradient",
        "        x, where = self.x, self.where\n"
        "        if self.by_rows:\n            of_one = lambda one, row: gradient",
        within(
            "statistics/test_sandwich",
            "examples_of_devices_are_refused_where_derivatives_are_added",
        ),
    ),
    Flaw(
        "nothing is searched for after convergence",
        SEARCH,
        "ended = same & far & (products - self.begin >= self.length)",
        "ended = True",
        within("linop/test_eigh", "all_copies_on_a_grid_are_found"),
    ),
    Flaw(
        "a search that found something is the last one",
        SEARCH,
        "begins = converged & ~same & ~complete",
        "begins = converged & ~same & ~complete & (self.length == 0)",
        within("linop/test_eigh", "all_copies_of_the_smallest_are_found"),
    ),
]

_READS = [
    Flaw(
        "the content of a NumPy array of a class is not compared",
        ARRAYS,
        'return ("digest", *form, content)',
        'return ("digest", *form)',
        stale("a_numpy_array_of_a_class_is_mutated_and_back"),
    ),
    Flaw(
        "an array of a class is known by its type alone",
        WALK,
        "            self.key.append(SameThing(value))",
        "            self.key.append(type(value))",
        stale("an_array_is_an_attribute_of_a_class"),
    ),
    Flaw(
        "programs share the memory of NumPy arrays",
        CALL,
        "with_copies(run) if walk.pins_numpy else run()",
        "run()",
        within("capture/test_pinned", "no_program_shares_the_memory_of_a_numpy_array"),
    ),
    Flaw(
        "an object that is passed on does not escape",
        READS,
        "        else:\n            self.escaped.add(name)",
        "        else:\n            pass",
        within("capture/test_reads", "an_object_escapes"),
    ),
    Flaw(
        "a method is not gone into",
        PARTS,
        '        if place in ("method", "property"):\n            _enter',
        "        if False:\n            _enter",
        within("capture/test_reads", "a_training_loop_is_traced_once"),
    ),
    Flaw(
        "a class that decides what an attribute is is read by parts",
        PARTS,
        "    return all(_HOOKS.isdisjoint(vars(base)) for base in _user_bases(cls))",
        "    return True",
        within("capture/test_reads", "a_hook_of_the_class_makes_everything_count"),
    ),
    Flaw(
        "the bases of a class are not compared",
        CLASSES,
        "    d.identity(base, here)\n    members",
        "    members",
        stale("the_bases_of_a_class_are_told"),
    ),
    Flaw(
        "who is registered with an abstract class is not compared",
        CLASSES,
        "            d.note(_registered(value))",
        "            pass",
        stale("a_class_is_registered_with_an_abstract_one"),
    ),
    Flaw(
        "compiled solvers do not know the default generator",
        "hotk/_prepared/_jitted.py",
        "(unkeyed_setting(), *_classes(given))",
        "(None, *_classes(given))",
        within("linop/test_what_jax_does_not_know", "the_default_generator[diagonal]"),
    ),
    Flaw(
        "compiled solvers do not know what is read of classes",
        "hotk/_prepared/_jitted.py",
        "(unkeyed_setting(), *_classes(given))",
        "(unkeyed_setting(),)",
        within(
            "linop/test_what_jax_does_not_know",
            "a_class_that_changed_before_the_first_trace[diagonal-Number]",
        ),
    ),
    Flaw(
        "functions that read the environment are harmless",
        REFLECTION,
        '    if home in REFLECTION and home != "builtins":',
        "    if False:",
        stale("the_environment_is_read_by_name", "a_frame_is_asked_for_by_name"),
    ),
    Flaw(
        "settings of JAX are not compared",
        REFLECTION,
        "    describe_settings(d, HARMLESS.learn(found, name, chains))",
        "    HARMLESS.learn(found, name, chains)",
        stale("a_setting_of_jax_is_read"),
    ),
    Flaw(
        "the names given to getattr are not looked at",
        "hotk/_capture/_description.py",
        "        if self.reads_by_name and self.hidden_names:",
        "        if False:",
        stale("the_text_of_a_function_is_asked_for_by_getattr"),
    ),
]

_LIBRARIES = [
    Flaw(
        "a rule that reads a tracer that has ended is kept",
        TRACED,
        "    return RULE_CAPTURES_ARRAY if reaches_tracer(closed) else None",
        "    return None",
        within(RULES_TESTS, "a_rule_of_a_rule_is_followed_by_outer_derivatives"),
    ),
    Flaw(
        "the body stands in for a rule that fails",
        "hotk/_prepared/_plan.py",
        "    return stands_in and not any(map(raised_by_user, failed))",
        "    return not any(map(raised_by_user, failed))",
        within(RULES_TESTS, "the_body_does_not_stand_in_for_a_rule_that_fails"),
    ),
]

_TREES = [
    Flaw(
        "the mask of a filter is not in the key",
        "hotk/_prepared/_operator.py",
        "block_size, order, selected)",
        "block_size, order, None)",
        within(FILTERS, "two_filters_are_two_programs"),
    ),
    Flaw(
        "numbers of a module are parameters",
        "hotk/_core/_where.py",
        "    return frozenset(i for i in numbers if inside[i])",
        "    return frozenset()",
        within(FILTERS, "numbers_inside_of_a_module_are_configuration"),
    ),
    Flaw(
        "a gradient of configuration is a step",
        "hotk/optim/_step.py",
        "        _refuse_configuration(call, params, leaves)\n",
        "",
        within(FILTERS, "a_gradient_of_configuration_is_refused"),
    ),
    Flaw(
        "several arguments are put back in another order",
        "hotk/_prepared/_arguments.py",
        "        chosen = tuple(arguments[i] for i in self.positions)",
        "        chosen = tuple(arguments[i] for i in sorted(self.positions))",
        within("prepared/test_argnums", "it_is_that_of_jax"),
    ),
]

_KFAC = [
    Flaw(
        "complex operands are those of a layer",
        "hotk/linop/kfac/_find.py",
        "    if 0 in view.shape or any(jnp.iscomplexobj(atom.aval) for atom in atoms):",
        "    if 0 in view.shape:",
        within(
            "linop/kfac/test_exact",
            "complex_numbers_on_the_way_have_a_block_of_another_kind",
        ),
    ),
    Flaw(
        "examples are compared where the last layer is zero",
        "hotk/linop/kfac/_mixing.py",
        "compared(x), compared(nearby(x))",
        "compared(x), compared(x)",
        within(
            "linop/kfac/test_operator",
            "what_mixes_examples_is_seen_in_any_batch_at_any_parameters",
        ),
    ),
    Flaw(
        "the first two examples are compared",
        "hotk/linop/kfac/_mixing.py",
        "    return jnp.argmax(total).astype(jnp.int32)",
        "    return jnp.ones((), jnp.int32)",
        within(
            "linop/kfac/test_operator",
            "examples_that_depend_on_each_other_are_refused_inside_of_jit",
        ),
    ),
    Flaw(
        "a large output hides what mixes the others",
        "hotk/linop/kfac/_mixing.py",
        "    apart = jnp.abs(a - jnp.median(a, axis=0, keepdims=True))",
        "    apart = jnp.max(jnp.abs(a)) + 0 * a",
        within(
            "linop/kfac/test_operator",
            "what_mixes_examples_is_seen_beside_large_outputs",
        ),
    ),
    Flaw(
        "two examples are compared, not all",
        "hotk/linop/kfac/_mixing.py",
        "_differ(together, alone.reshape(-1, *alone.shape[2:]), eps)",
        "_differ(together[:2], alone[:2, 0], eps)",
        within(
            "linop/kfac/test_operator",
            "what_only_some_examples_of_a_large_batch_show_is_refused",
        ),
    ),
    Flaw(
        "the factor of the inputs is a sum",
        MOMENTS,
        "@ weighted / count",
        "@ weighted",
        within(FACTORS, "the_exact_factors_of_a_perceptron"),
    ),
    Flaw(
        "factors of a transposed use are not swapped",
        "hotk/linop/kfac/_build.py",
        "terms.append((G, A) if swapped else (A, G))",
        "terms.append((A, G))",
        within(FACTORS, "a_transposed_use_gives_the_nearest_kronecker_product"),
    ),
    Flaw(
        "a bias is uncorrelated with the inputs",
        MOMENTS,
        "    first = bias * jnp.mean(weighted, axis=-2)[..., None]",
        "    first = 0 * jnp.mean(weighted, axis=-2)[..., None]",
        within(FACTORS, "the_exact_factors_of_a_perceptron"),
    ),
    Flaw(
        "patches are read at all places",
        PATCHES,
        '            p["window_strides"],\n',
        "            (1,) * len(window),\n",
        within(FACTORS, "the_patches_of_a_convolution_with_steps_and_gaps"),
    ),
    Flaw(
        "patches are read without padding",
        PATCHES,
        '            p["padding"],\n',
        '            "VALID",\n',
        within(FACTORS, "the_patches_of_a_convolution_with_steps_and_gaps"),
    ),
    Flaw(
        "patches are read without gaps",
        PATCHES,
        '            rhs_dilation=p["rhs_dilation"],\n',
        "",
        within(FACTORS, "the_patches_of_a_convolution_with_steps_and_gaps"),
    ),
    Flaw(
        "weights shared over time count the last step",
        MOMENTS,
        "    a = a.reshape(*heads, groups, len(read), -1, *width)",
        "    a = a.reshape(*heads, groups, len(read), -1, *width)\n"
        "    a = a[..., -1:, :] if shared and width else a",
        within(FACTORS, "a_scan_over_time_has_the_factors_of_the_loop"),
    ),
    Flaw(
        "tied weights count their first use",
        MOMENTS,
        "    if len(all_positions) == 1:\n",
        "    if all_positions:\n",
        within(FACTORS, "a_matrix_used_twice_has_the_factors_of_all_its_positions"),
    ),
    Flaw(
        "the correction pi is upside down",
        "hotk/linop/kfac/_block.py",
        "jnp.maximum(self.A.mean, tiny) / jnp.maximum(self.G.mean, tiny)",
        "jnp.maximum(self.G.mean, tiny) / jnp.maximum(self.A.mean, tiny)",
        within("linop/kfac/test_operator", "the_inverse_with_pi"),
    ),
    Flaw(
        "averages of factors stay as they were",
        KFAC_STEP,
        "space.choose(given & space.is_finite(factors), factors, state.factors)",
        "state.factors",
        within("optim/test_kfac", "factors_are_averaged"),
    ),
    Flaw(
        "inverses are those of the last averages",
        KFAC_STEP,
        "lambda: damped_inverses(factors, x, shift)",
        "lambda: damped_inverses(state.factors, x, shift)",
        within("optim/test_kfac", "inverses_are_those_of_the_new_averages"),
    ),
]

_SPARSE = [
    Flaw(
        "a sum over a mapped axis adds flat values",
        "hotk/sparse/_across.py",
        "    if numbered:",
        "    if False:",
        within("sparse/test_mapped_axes", "jacobians", "hessians"),
    ),
    Flaw(
        "a zero of the pattern has no entry of the inverse",
        "hotk/sparse/_selected.py",
        "    lower = _with_zeros(*_below_diagonal(factors), distinct(keys[off]))",
        "    lower = _below_diagonal(factors)",
        within("sparse/test_selected", "entries_of_the_pattern_that_are_zero"),
    ),
    Flaw(
        "a derived rule adds over a batch",
        "hotk/rule/_external.py",
        "            if derived and lead:",
        "            if False:",
        within("rule/test_external", "a_batch_in_one_call"),
    ),
    Flaw(
        "in a trace nobody asks whether examples are mixed",
        "hotk/linop/kfac/_mixing.py",
        "                if mixed or finite:",
        "                if False:",
        within(
            "linop/kfac/test_operator",
            "examples_that_depend_on_each_other_are_refused_inside_of_jit",
        ),
    ),
    Flaw(
        "predictions at rows of a device are summed over the devices",
        "hotk/statistics/_parameters.py",
        "    if not own:\n        return x",
        "    if axes:\n        return x",
        within(
            "statistics/test_devices",
            "results_are_whole_each_devices_own_or_refused",
        ),
    ),
    Flaw(
        "a fit of each device's data has the curvature of all",
        "hotk/statistics/_parameters.py",
        "    if own:\n        raise StructureError(",
        "    if own and not axes:\n        raise StructureError(",
        within(
            "statistics/test_devices",
            "results_are_whole_each_devices_own_or_refused",
        ),
    ),
    Flaw(
        "small losses are not asked whether they depend on other rows",
        "hotk/statistics/_examples.py",
        "apart > _ROUNDINGS * eps * largest",
        "apart > _ROUNDINGS * eps * max(largest, 1)",
        within(
            "statistics/test_sandwich",
            "a_loss_that_depends_on_other_rows_is_refused_in_any_unit",
        ),
    ),
    Flaw(
        "a log-determinant inside of a transformation is half of it",
        "hotk/estimate/_logdet.py",
        "            value = 2 * jnp.sum(jnp.log(pivots))",
        "            value = jnp.sum(jnp.log(pivots))",
        within(
            "estimate/test_logdet",
            "of_few_dimensions_it_is_exact_inside_of_transformations",
        ),
    ),
    Flaw(
        "a second derivative of a sparse log-determinant is that along one triangle",
        "hotk/sparse/_selected.py",
        "    tangent = (tangent + tangent[across]) / 2",
        "    tangent = tangent[across]",
        within(
            "sparse/test_selected",
            "second_derivatives_by_the_entries_are_those_of_symmetric_matrices",
        ),
    ),
    Flaw(
        "what is computed on the host is the same on all devices",
        "hotk/_core/_axes.py",
        "    axes = frozenset().union(*map(varying_axes, types))",
        "    axes = frozenset[str]()",
        within("rule/test_external", "in_shard_map_results_vary_by_device"),
    ),
    Flaw(
        "a decrease is little beside the rounding of the largest value",
        "hotk/optim/_chunk.py",
        "    return jnp.where(jnp.abs(y) <= zero, zero, relative)",
        "    return jnp.maximum(relative, eps * jnp.minimum(highest, 1))",
        within("optim/test_scale", "a_small_unit_of_the_function_is_no_convergence"),
    ),
    Flaw(
        "negative curvature below the first shift is rounding",
        "hotk/optim/_newton.py",
        "        bent = cond(attempts > 1, _bends_down, never, scaled)",
        "        bent = cond(attempts > 100, _bends_down, never, scaled)",
        within("optim/test_scale", "a_small_unit_of_the_function_is_no_convergence"),
    ),
    Flaw(
        "a rise is the difference of large potentials",
        "hotk/statistics/_refits.py",
        "    if known or not math.isfinite(difference):",
        "    if known or math.isfinite(difference):",
        within(
            "statistics/test_profile",
            "a_rise_that_single_precision_does_not_know_is_found",
        ),
    ),
    Flaw(
        "a program of the first batch is called with longer ones",
        "hotk/linop/_sums.py",
        "self.of_others or _types(batch) == self.types",
        "self.of_others or True",
        within(
            "linop/test_batches",
            "batches_of_other_lengths_beside_numbers_that_change",
        ),
    ),
    Flaw(
        "standard errors are roots of sums of squares as they are",
        "hotk/statistics/_covariance.py",
        "    return safe.norm(space.widened(rows), -1).astype(rows.dtype)",
        "    return jnp.sqrt(jnp.sum(rows**2, axis=-1))",
        within("statistics/test_fit", "small_units_have_errors_or_are_refused"),
    ),
    Flaw(
        "the Lagrangian has no weight",
        "hotk/sparse/_sparse_lagrangian.py",
        "        total = weight * objective",
        "        total = objective",
        within("sparse/test_lagrangian", "values_and_derivatives"),
    ),
    Flaw(
        "sparse factors are in single precision",
        "hotk/sparse/_factors.py",
        "np.complex128 if np.iscomplexobj(values) else np.float64",
        "np.complex64 if np.iscomplexobj(values) else np.float32",
        within("sparse/test_factorization", "small_pivots_in_single_precision"),
    ),
    Flaw(
        "entries of single precision grow as those of double precision",
        "hotk/sparse/_factors.py",
        "else 1e3",
        "else 1e6",
        within("sparse/test_factorization", "small_pivots_in_single_precision"),
    ),
    Flaw(
        "a matrix that is singular up to rounding is solved",
        "hotk/sparse/_factor_errors.py",
        "    if not zero.size:",
        "    if zero.size >= 0:",
        within(
            "sparse/test_factorization",
            "a_matrix_that_is_singular_up_to_rounding_says_so",
        ),
    ),
    Flaw(
        "a block of two pivots counts as its first row",
        "hotk/sparse/_bunch_kaufman.py",
        "np.concatenate([alone, mean - away, mean + away])",
        "np.concatenate([alone, mean, mean])",
        within(
            "sparse/test_factorization",
            "inertia_where_most_variables_have_no_cost",
        ),
    ),
    Flaw(
        "growth is measured with the largest entry",
        "hotk/sparse/_superlu.py",
        "        scale = alike_by_largest(pattern, values)",
        "        scale = np.ones(pattern.shape[0]) / np.sqrt(np.abs(values).max())",
        within(
            "sparse/test_factorization",
            "an_entry_of_another_unit_hides_no_unstable_pivot",
        ),
    ),
    Flaw(
        "inertia is that of rows whose largest entry is one",
        "hotk/sparse/_scalings.py",
        "    return alike_by_largest(pattern, values, start=found)",
        "    return alike_by_largest(pattern, values)",
        within("sparse/test_factorization", "inertia_does_not_depend_on_units"),
    ),
    Flaw(
        "halves are compared with the largest entry",
        "hotk/linop/_sparse_operator.py",
        "rounding * np.maximum(own, terms)",
        "rounding * np.maximum(own, terms).max()",
        within(
            "linop/test_sparse_operator",
            "an_entry_of_another_unit_makes_no_matrix_symmetric",
        ),
    ),
    Flaw(
        "a difference has one step for all arguments",
        "hotk/rule/_external.py",
        "longest = [np.min(np.maximum(1, abs(a))",
        "longest = [np.max(np.maximum(1, abs(a))",
        within(
            "rule/test_external",
            "arguments_of_different_size_have_steps_of_their_own",
        ),
    ),
    Flaw(
        "pivots are measured with the largest one",
        "hotk/sparse/_factor_errors.py",
        "sizes <= limit * found.terms",
        "sizes <= limit * found.terms.max()",
        within(
            "sparse/test_factorization",
            "units_of_variables_make_no_matrix_singular",
        ),
    ),
    Flaw(
        "a Schur complement without products of different panels",
        "hotk/sparse/_schur.py",
        "rest[product.second.cols, product.first.cols] -= other",
        "rest[product.second.cols, product.first.cols] -= 0 * other",
        within("sparse/test_schur", "factors_against_dense"),
    ),
    Flaw(
        "blocks that meet are eliminated together",
        "hotk/sparse/_elimination.py",
        "        free[tails[taken[heads]]] = False\n",
        "",
        within("sparse/test_schur", "factors_against_dense"),
    ),
    Flaw(
        "what is left has no shift",
        "hotk/sparse/_schur.py",
        "rest[np.diag_indices(how.left)] += shift",
        "pass",
        within("sparse/test_schur", "shifts"),
    ),
    Flaw(
        "the Jacobian of a model is held for two derivatives",
        "hotk/curvature/_outputs.py",
        "held(inputs, held_in(equation) - derivatives)",
        "held(inputs, held_in(equation))",
        within("sparse/test_congruence", "derivatives_of_the_entries"),
    ),
    Flaw(
        "a point that is changed before is taken for that of the model",
        "hotk/curvature/_outputs.py",
        "return not changes and not",
        "return not",
        within(
            "sparse/test_congruence",
            "a_point_that_is_changed_before_has_its_second_derivative",
        ),
    ),
]

_ALL = (
    *(*_KEY, *_MEMORY, *_NUMBERS, *_GUARDS),
    *(
        *_SHARED,
        *_TOLD,
        *_KINDS,
        *_READS,
        *_LIBRARIES,
        *_TREES,
        *_SOLVERS,
        *_KFAC,
        *_SPARSE,
    ),
)
FLAWS = {flaw.name: flaw for flaw in _ALL}

QUICK = [
    "cells are not described",
    "keyword defaults are not described",
    "the key ignores the order of a dict",
    "NumPy arrays are not copied",
    "what was used last goes first",
    "a tangent is dropped",
    "the seeds of a column have a wrong offset",
    "directions of another dtype are cast",
    "a guard does not tell two arrays apart",
    "numbers that are no arguments are taken for equal",
    "an opaque function is told of at each call",
]
