"""Errors, descriptions, tables, and what hotk uses of the internals of JAX."""

from ._attributes import no_attribute as no_attribute, no_name as no_name
from ._axes import (
    axes_beyond as axes_beyond,
    axes_named as axes_named,
    crosses_devices as crosses_devices,
    differs_along as differs_along,
    first_collective as first_collective,
    has_explicit_axes as has_explicit_axes,
    has_types as has_types,
    in_front as in_front,
    is_divided_by_type as is_divided_by_type,
    manual_axes as manual_axes,
    shared_as as shared_as,
    typed_as as typed_as,
    varies_by_device as varies_by_device,
    varying_alike as varying_alike,
    varying_along as varying_along,
    varying_as as varying_as,
    varying_axes as varying_axes,
    whole as whole,
    zeros_like as zeros_like,
)
from ._by_numpy import (
    ARITHMETIC as ARITHMETIC,
    COMPARISONS as COMPARISONS,
    LOGIC as LOGIC,
    MOVES as MOVES,
    ORDERED as ORDERED,
    RING as RING,
    SELECTED as SELECTED,
)
from ._canonical import (
    CanonicalForm as CanonicalForm,
    Number as Number,
    canonical_form as canonical_form,
    pruned as pruned,
)
from ._compat import (
    ARRAY as ARRAY,
    CELL as CELL,
    JITTED as JITTED,
    NEEDS_VALUE as NEEDS_VALUE,
    WITHOUT_RULES as WITHOUT_RULES,
    AbstractValue as AbstractValue,
    Atom as Atom,
    ClosedJaxpr as ClosedJaxpr,
    EnumerationItem as EnumerationItem,
    Jaxpr as Jaxpr,
    JaxprEqn as JaxprEqn,
    Literal as Literal,
    Options as Options,
    Primitive as Primitive,
    ShapedArray as ShapedArray,
    ShardingTypeError as ShardingTypeError,
    Tracer as Tracer,
    Var as Var,
    ad as ad,
    as_written as as_written,
    compiled as compiled,
    compiler_options as compiler_options,
    divided_alike as divided_alike,
    equations as equations,
    goes_into_program as goes_into_program,
    has_jit_options as has_jit_options,
    in_trace as in_trace,
    inner_jaxprs as inner_jaxprs,
    is_outermost as is_outermost,
    is_type as is_type,
    jaxpr_as_fun as jaxpr_as_fun,
    jit_like as jit_like,
    jit_options as jit_options,
    mapped_aval as mapped_aval,
    needed_for as needed_for,
    new_primitive as new_primitive,
    program_of_sparse as program_of_sparse,
    shape_of as shape_of,
    signature_count as signature_count,
    source_line as source_line,
    trace_context as trace_context,
    unkeyed_setting as unkeyed_setting,
    unmapped_aval as unmapped_aval,
    used_inputs as used_inputs,
    with_weak_type as with_weak_type,
)
from ._compat_trace import (
    abandoned_if_failed as abandoned_if_failed,
    constants_behind as constants_behind,
    known_results as known_results,
    output_types as output_types,
    program_for_types as program_for_types,
    rule_functions as rule_functions,
    source_frames as source_frames,
    trace_once as trace_once,
)
from ._compiler_flags import FUSIONS_FLAG as FUSIONS_FLAG
from ._describe import (
    bytes_name as bytes_name,
    describe as describe,
    describe_tree as describe_tree,
    dtype_name as dtype_name,
    file_name as file_name,
    float_scalar as float_scalar,
    function_name as function_name,
    function_place as function_place,
    leaf_name as leaf_name,
    number_name as number_name,
    peek as peek,
)
from ._difference import difference as difference
from ._enumeration import Enumeration as Enumeration
from ._errors import (
    PASSED_ON as PASSED_ON,
    ChangingValueWarning as ChangingValueWarning,
    CurvatureMismatchWarning as CurvatureMismatchWarning,
    DensePatternWarning as DensePatternWarning,
    DtypeError as DtypeError,
    HotkError as HotkError,
    ModeError as ModeError,
    NestedDerivativesWarning as NestedDerivativesWarning,
    NotPositiveDefiniteError as NotPositiveDefiniteError,
    NotStationaryWarning as NotStationaryWarning,
    OpaqueWarning as OpaqueWarning,
    OutputError as OutputError,
    PreparationError as PreparationError,
    SingularHessianWarning as SingularHessianWarning,
    StructureError as StructureError,
    TooLargeError as TooLargeError,
    VerificationError as VerificationError,
    ZeroHessianWarning as ZeroHessianWarning,
    message as message,
    not_finite as not_finite,
    note_list as note_list,
)
from ._extra import extra as extra
from ._fingerprint import (
    Path as Path,
    Unrecognized as Unrecognized,
    fingerprint as fingerprint,
)
from ._from_host import from_host as from_host, is_known as is_known
from ._inexact import (
    is_inexact as is_inexact,
    is_inexact_or_shape as is_inexact_or_shape,
)
from ._interpret import (
    Handlers as Handlers,
    bound as bound,
    called_program as called_program,
    evaluate as evaluate,
    inlined as inlined,
    inlined_equations as inlined_equations,
    inner_constants as inner_constants,
    nested_order as nested_order,
    order_name as order_name,
    placed_equations as placed_equations,
    run_jaxpr as run_jaxpr,
    run_replaced as run_replaced,
    run_watched as run_watched,
    run_watched_inside as run_watched_inside,
)
from ._keywords import (
    elsewhere as elsewhere,
    names_ours as names_ours,
    remark as remark,
)
from ._leaked import tracers_inside as tracers_inside
from ._loops import cond as cond, fori_loop as fori_loop, while_loop as while_loop
from ._moved import (
    SHORT as SHORT,
    same_once_moved as same_once_moved,
    same_program as same_program,
)
from ._numbers import with_numbers as with_numbers
from ._primitives import (
    CUSTOM as CUSTOM,
    TRAITS as TRAITS,
    ProgramKind as ProgramKind,
    Traits as Traits,
    traits_of as traits_of,
)
from ._programs import (
    EXTREMES as EXTREMES,
    check_forward as check_forward,
    compared_extremes as compared_extremes,
    has_extremes as has_extremes,
    has_ruled_extremes as has_ruled_extremes,
    has_users_rule as has_users_rule,
    operation_name as operation_name,
    scan_counts as scan_counts,
)
from ._progress import bar as bar, progress as progress
from ._ranges import check_settings as check_settings
from ._settings import (
    decisive_settings as decisive_settings,
    makes_keys as makes_keys,
    nan_on_purpose as nan_on_purpose,
    settings_for as settings_for,
)
from ._shard import (
    Held as Held,
    Shard as Shard,
    has_shards as has_shards,
    held as held,
    is_shard as is_shard,
    without_shards as without_shards,
)
from ._table import (
    AbstractReport as AbstractReport,
    html_table as html_table,
    text_table as text_table,
)
from ._traceback import hides_frames as hides_frames
from ._types import (
    Argnums as Argnums,
    Arrays as Arrays,
    Cotangent as Cotangent,
    Function as Function,
    FunctionWithAux as FunctionWithAux,
    Gradient as Gradient,
    Keywords as Keywords,
    Leaf as Leaf,
    Point as Point,
    PyTreeDef as PyTreeDef,
    RandomKey as RandomKey,
    RealNumber as RealNumber,
    Scalar as Scalar,
    Tangent as Tangent,
    Types as Types,
    V as V,
    Vector as Vector,
    WhileLoop as WhileLoop,
)
from ._where import (
    PointLeaves as PointLeaves,
    Selection as Selection,
    Where as Where,
    configuration as configuration,
    differentiated as differentiated,
    map_free as map_free,
    nothing_inexact as nothing_inexact,
    selection as selection,
    split_point as split_point,
)
from ._work import LARGEST_FACTOR as LARGEST_FACTOR, work as work
