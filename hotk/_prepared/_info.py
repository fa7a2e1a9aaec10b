"""`Info` of a prepared operator, `CacheInfo` of the store: what is run and kept."""

import html
from typing import Any, NamedTuple

from hotk._core import bytes_name, equations, html_table, text_table
from hotk._dense import Division
from hotk._primitive import notes_of

from ._program import Program


class Info(NamedTuple):
    """What a prepared operator runs and what it costs: `prepared.info`.

    It prints as a table of one line for each field.

    Attributes:
        operator: Name of the operator.
        mode: The mode that runs.
        why: The reason for this mode.
        rules: Which derivative rules run, of functions that have some of their own.
        block: How many directions at once; `None` if it does not work in blocks, or
            takes all at once.
        equations: Equations of the traced program, inner ones included.
        flops: Floating-point operations of one call, as XLA counts them.
        bytes: Bytes that one call reads and writes, as XLA counts them.
        peak_bytes: Bytes of arguments, results and temporaries together, as XLA plans
            them.
        temporary_bytes: Bytes of temporaries alone.
        trace_seconds: Seconds that tracing took.
        lower_seconds: Seconds that lowering took.
        compile_seconds: Seconds that compiling took.
    """

    operator: str
    mode: str
    why: str
    rules: tuple[str, ...]
    block: int | None
    equations: int
    flops: float
    bytes: float
    peak_bytes: int
    temporary_bytes: int
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float

    def __str__(self) -> str:
        """Write one line a field."""
        return text_table(("field", "value"), self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(("field", "value"), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        for name, value in self._asdict().items():
            if name == "bytes" or name.endswith("_bytes"):
                rows.append((name, bytes_name(value)))
            elif name == "rules":
                rows.append((name, "; ".join(value) or "-"))
            elif name.endswith("_seconds"):
                rows.append((name, f"{value:.3g}"))
            else:
                rows.append((name, str(value)))
        return rows


def info_of(program: Program) -> Info:
    """Collect what is known of a compiled program."""
    cost: dict[str, Any] = {}
    temporary = peak = 0
    if program.compiled is not None:
        found = program.compiled.cost_analysis()
        cost = (found[0] if isinstance(found, list) else found) or {}
        memory = program.compiled.memory_analysis()
        if memory is not None:
            temporary = memory.temp_size_in_bytes
            peak = (
                temporary
                + memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                - memory.alias_size_in_bytes
            )
    block = program.block if program.options.definition.sized else None
    jaxpr = program.traced.jaxpr.jaxpr if program.traced is not None else None
    return Info(
        program.options.definition.name,
        str(program.mode),
        program.why,
        () if jaxpr is None else notes_of(jaxpr),
        block.size if isinstance(block, Division) else block,
        0 if jaxpr is None else sum(1 for _ in equations(jaxpr)),
        float(cost.get("flops", 0.0)),
        float(cost.get("bytes accessed", 0.0)),
        peak,
        temporary,
        program.seconds.get("trace", 0.0),
        program.seconds.get("lower", 0.0),
        program.seconds.get("compile", 0.0),
    )


class CacheInfo(NamedTuple):
    """What the store holds and has done since it was cleared.

    Attributes:
        hits: Direct calls that found their program by the key alone.
        misses: Direct calls that did not: a new structure, signature or setting of JAX,
            or an opaque function.
        traces: How often the body of a user's function was traced.
        compiles: How many programs were compiled.
        shared: Misses whose traced program was there already: nothing was compiled.
        entries: How many signatures of functions are known, over all functions.
        bytes: Estimated memory of the compiled programs.
        evictions: Entries dropped to stay within the bounds.
        reasons: The last misses, newest last: operator, function and why, as in
            "hvp(loss): cell `rate`: 0.1 -> 0.2".
    """

    hits: int
    misses: int
    traces: int
    compiles: int
    shared: int
    entries: int
    bytes: int
    evictions: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Write a small table and the reasons of the last misses."""
        return "\n".join((text_table(*self._table()), *self.reasons[-5:]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = map(html.escape, self.reasons[-5:])
        return html_table(*self._table()) + "".join(f"<p>{line}</p>" for line in lines)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        values = [str(value) for value in self[:6]]
        values += [bytes_name(self.bytes), str(self.evictions)]
        return list(self._fields[:8]), [values]
