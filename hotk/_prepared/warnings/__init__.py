"""What hotk warns of, from facts that are handed to it: it reads no call by itself."""

from ._opaque_functions import (
    NEEDS_CONTENT as NEEDS_CONTENT,
    NUMPY_COMPUTES as NUMPY_COMPUTES,
    is_known_to_write as is_known_to_write,
    note_change as note_change,
    note_line as note_line,
    place_of as place_of,
    warn_if_changing as warn_if_changing,
    warn_if_opaque_again as warn_if_opaque_again,
)
from ._per_code import (
    PerCode as PerCode,
    clear_notes as clear_notes,
    code_of as code_of,
    error_line as error_line,
    user_level as user_level,
)
from ._zero_hessian import (
    kinks as kinks,
    warn_if_nested as warn_if_nested,
    warn_if_zero_hessian as warn_if_zero_hessian,
)
