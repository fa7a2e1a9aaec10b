"""What hotk knows of the primitives of JAX: the one table of their traits.

A trait that is not set costs time or memory, never a number: an operation without any
is differentiated by JAX's own rule. A trait that is set and does not hold gives wrong
numbers. `tests/_core/test_primitives.py` fails for a primitive of the installed JAX
that has no row.
"""

import enum
from typing import Final, NamedTuple

from ._compat import JaxprEqn


class ProgramKind(enum.Enum):
    """What a primitive does with the program among its parameters."""

    CALL = enum.auto()
    CHECKPOINT = enum.auto()
    RULED = enum.auto()  # runs it, and has a derivative rule of its own
    COND = enum.auto()
    SCAN = enum.auto()
    WHILE = enum.auto()
    SOLVE = enum.auto()


class Traits(NamedTuple):
    """What holds of an operation, whatever its operands are.

    Attributes:
        linear: The operands that it is linear in together while the others are held,
            as a slice of the operands.
        bilinear: It is linear in each of its two operands while the other is held.
        elementwise: Entry i of a result depends on entry i of each operand alone,
            counted in the order of the array; so a `squeeze` is one.
        univariate: It is a smooth function of one number, entry by entry.
        constant: It is constant in pieces: its derivative is zero, also where an
            operand is infinite.
        kinked: It is linear or constant in pieces that meet in a kink or a step.
        straight: A composition with it may still have a second derivative of zero.
            Implied by `linear`, `bilinear`, `constant` and `kinked`. An operation with
            a program is as straight as the operations inside.
        fused: XLA computes it within its neighbors and never writes its result.
        moves: It only moves numbers, so NumPy does the same, to the last bit.
        on_host: It calls Python each time it runs.
        makes_keys: It makes random keys in the way that JAX's settings say.
        program: What it does with the program among its parameters, if it has one.
    """

    linear: slice | None = None
    bilinear: bool = False
    elementwise: bool = False
    univariate: bool = False
    constant: bool = False
    kinked: bool = False
    straight: bool = False
    fused: bool = False
    moves: bool = False
    on_host: bool = False
    makes_keys: bool = False
    program: ProgramKind | None = None

    @property
    def is_straight(self) -> bool:
        """Whether a composition with it may have a second derivative of zero."""
        pieces = self.constant or self.kinked
        return self.linear is not None or self.bilinear or pieces or self.straight

    @property
    def is_inlined(self) -> bool:
        """Whether its value is that of the program inside, run once."""
        return self.program in (
            ProgramKind.CALL,
            ProgramKind.CHECKPOINT,
            ProgramKind.RULED,
        )


_ALL = slice(None)
_FIRST = slice(1)

# Primitives of the same traits share a row.
_ROWS: tuple[tuple[Traits, str], ...] = (
    # ---- linear in all operands
    (
        Traits(linear=_ALL, elementwise=True, fused=True),
        """
        add add_any convert_element_type imag neg optimization_barrier real
        reduce_precision sub
        """,
    ),
    (Traits(linear=_ALL, elementwise=True), "complex conj"),
    (Traits(linear=_ALL, elementwise=True, fused=True, moves=True), "copy squeeze"),
    (
        Traits(linear=_ALL, fused=True, moves=True),
        "broadcast_in_dim concatenate reshape rev slice transpose",
    ),
    (Traits(linear=_ALL, fused=True), "pad"),
    (Traits(linear=_ALL, moves=True), "split unstack"),
    (Traits(linear=_ALL), "cumsum fft hotk_written reduce_sum reduce_window_sum"),
    # Across devices. They are linear in each device's part.
    (
        Traits(linear=_ALL),
        """
        all_gather all_to_all ppermute psum psum_invariant pvary reduce_scatter
        sharding_constraint
        """,
    ),
    # ---- linear in some operands
    (Traits(linear=_FIRST), "dynamic_slice gather select_and_scatter_add"),
    (Traits(linear=slice(2)), "dynamic_update_slice"),
    (Traits(linear=slice(0, 3, 2)), "scatter-add"),
    (Traits(linear=slice(1, 2)), "triangular_solve"),
    # `hotk_alike` is its first operand, divided among devices as the second one is.
    (Traits(linear=_FIRST, elementwise=True, fused=True), "div hotk_alike"),
    (
        Traits(linear=slice(1, None), elementwise=True, fused=True, kinked=True),
        "select_n",
    ),
    # Not linear for series: which of two equal indices wins must be the same in all
    # coefficients, which JAX's derivative rule sees to.
    (Traits(straight=True), "scatter"),
    # ---- products
    (Traits(bilinear=True, elementwise=True, fused=True), "mul"),
    (Traits(bilinear=True), "conv_general_dilated dot_general"),
    # ---- smooth functions of one number
    (
        Traits(elementwise=True, univariate=True, fused=True),
        """
        acos acosh asin asinh atan atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2
        expm1 integer_pow lgamma log log1p log2 logistic one_minus_square rsqrt sin sinh
        sqrt square tan tanh
        """,
    ),
    # ---- other functions, entry by entry
    (Traits(elementwise=True, fused=True), "atan2 pow rem"),
    (
        Traits(elementwise=True),
        """
        bessel_i0e bessel_i1e igamma igamma_grad_a igammac mulhi polygamma polynomial
        regularized_incomplete_beta zeta
        """,
    ),
    # ---- in pieces
    # A function of one number for series as well: its derivative is a sign.
    (Traits(elementwise=True, univariate=True, kinked=True, fused=True), "abs"),
    (Traits(elementwise=True, kinked=True, fused=True), "clamp max min"),
    (
        Traits(kinked=True),
        """
        cummax cummin reduce_max reduce_min reduce_window_max reduce_window_min sort
        top_k
        """,
    ),
    (
        Traits(elementwise=True, constant=True, kinked=True, fused=True),
        "ceil floor round sign",
    ),
    (Traits(constant=True, kinked=True), "argmax argmin"),
    (
        Traits(elementwise=True, constant=True, fused=True),
        "and eq ge gt hotk_held is_finite le lt ne not or stop_gradient xor",
    ),
    (
        Traits(elementwise=True, constant=True),
        """
        clz eq_to le_to lt_to nextafter population_count shift_left
        shift_right_arithmetic shift_right_logical
        """,
    ),
    (Traits(constant=True, fused=True), "iota"),
    (Traits(constant=True), "reduce_and reduce_or reduce_xor"),
    # ---- with a program inside
    (Traits(straight=True, program=ProgramKind.CALL), "call closed_call jit"),
    (Traits(straight=True, program=ProgramKind.CHECKPOINT), "remat2"),
    (Traits(straight=True, program=ProgramKind.COND), "cond"),
    (Traits(straight=True, program=ProgramKind.SCAN), "scan"),
    (Traits(straight=True, program=ProgramKind.WHILE), "while"),
    (Traits(straight=True, program=ProgramKind.RULED), "custom_jvp_call"),
    (Traits(program=ProgramKind.RULED), "custom_vjp_call"),
    (Traits(program=ProgramKind.SOLVE), "custom_linear_solve"),
    # ---- what is not a function of its operands alone
    (Traits(on_host=True), "debug_callback debug_print io_callback pure_callback"),
    (Traits(makes_keys=True), "random_seed random_wrap"),
    # ---- without traits: JAX's own rules serve them, or they have none
    (
        Traits(),
        """
        approx_top_k cholesky cumlogsumexp cumprod eig eigh hessenberg
        householder_product lu qr reduce reduce_prod reduce_window schur svd tridiagonal
        tridiagonal_solve
        """,
    ),
    (
        Traits(),
        """
        ragged_dot_general scatter-max scatter-min scatter-mul scatter-sub
        select_and_gather_add select_and_scatter stack tile
        """,
    ),
    (
        Traits(),
        """
        random_bits random_fold_in random_gamma random_split random_unwrap
        rng_bit_generator rng_uniform threefry2x32
        """,
    ),
    (
        Traits(),
        """
        all_gather_invariant all_gather_reduced axis_index pbroadcast pbroadcast_dynamic
        pmax pmin preduced ragged_all_to_all reduced_vary_cast reduced_vary_cast_p
        relayout reshard shard_map unreduced_psum unreduced_reduce_scatter
        vary_unreduced_cast vary_unreduced_cast_p
        """,
    ),
    (
        Traits(),
        """
        accum_grad_in_ref addupdate after_all bitcast_convert_type box_get box_set
        compute_on
        call_hi_primitive call_hi_primitive_linearized check composite create_token
        custom_lin custom_vmap_call dce_sink device_put empty2 empty_ref eval_jaxpr
        ffi_call free_ref freeze from_edtype get inspect_sharding layout_constraint
        linear_call log_extend log_read name new_box new_log new_ref remat_opt run_state
        stage swap tie to_edtype with_memory_space_constraint xla_metadata_call
        xla_metadata_value
        """,
    ),
)

_UNKNOWN = Traits()
TRAITS: Final = {name: traits for traits, names in _ROWS for name in names.split()}


def traits_of(equation: JaxprEqn) -> Traits:
    """Return the traits of an operation; those of an unknown one are all absent."""
    return TRAITS.get(equation.primitive.name, _UNKNOWN)


# Functions with a derivative rule of their own: `jax.custom_jvp`, `jax.custom_vjp`.
CUSTOM: Final = frozenset(
    n for n, t in TRAITS.items() if t.program is ProgramKind.RULED
)

MAKES_KEYS: Final = frozenset(n for n, t in TRAITS.items() if t.makes_keys)
