"""Fuzz hotk against raw JAX.

python -m tests.fuzz --quick                       about two minutes on one core
python -m tests.fuzz --programs 10000 --seed 0     the long form, some hours

Prints programs per second, what was explained and why, and each failure as a program
that can be pasted and run. Exits with 1 if anything failed.
"""

import argparse
import collections
import sys
import time

import jax
import numpy as np

from .check import Failure, Verdict, check
from .program import Program, random_program, snippet
from .shrink import shrink


SETTINGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_disable_most_optimizations": True,
}
QUICK_SECONDS = 120


def report(failure: Failure) -> str:
    """Write a failure as a program to run, and as a line for the regressions."""
    return "\n".join(
        [
            "=" * 72,
            snippet(failure.program, failure.call),
            f"# expected: {failure.expected}",
            f"# got:      {failure.got!r}",
            f"# {failure.program!r}",
        ]
    )


def crashed(program: Program, error: Exception) -> Verdict:
    """Count an error outside hotk's calls as a failure of the fuzzer's own."""
    return Verdict(Failure(program, "# raw JAX", None, error), 0, ())


def run(programs: int, seed: int, seconds: float, hotk) -> int:
    """Check programs until their number or the time is reached; return the failures."""
    rng = np.random.default_rng(seed)
    failures, reasons, kinds = [], collections.Counter(), collections.Counter()
    compared, done, start = 0, 0, time.monotonic()
    while done < programs and time.monotonic() - start < seconds:
        program = random_program(rng)
        try:
            verdict = check(program, hotk)
        except Exception as error:
            verdict = crashed(program, error)
        done += 1
        compared += verdict.compared
        kinds.update(program.kinds)
        reasons.update(verdict.explained)
        if verdict.failure:
            call = verdict.failure.call

            def fails(smaller: Program, call=call) -> bool:
                try:
                    found = check(smaller, hotk).failure
                except Exception:
                    return False
                return found is not None and found.call == call

            small = shrink(program, fails)  # as drawn where raw JAX is what fails
            again = verdict if small == program else check(small, hotk)
            failures.append(again.failure or verdict.failure)
            print(report(failures[-1]), flush=True)
        if done % 200 == 0:
            hotk.clear_cache()
            jax.clear_caches()
            rate = done / (time.monotonic() - start)
            print(f"{done} programs, {rate:.2f} a second", flush=True)
    took = time.monotonic() - start
    print(
        f"{done} programs, {compared} comparisons, {len(failures)} failures,"
        f" {took:.0f} s, {done / took:.2f} programs a second"
    )
    for reason, count in reasons.items():
        print(f"explained: {count} x {reason}")
    print("kinds: " + ", ".join(f"{k} {n}" for k, n in sorted(kinds.items())))
    return len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most two minutes")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    import hotk

    seconds = QUICK_SECONDS if options.quick else float("inf")
    return min(run(options.programs, options.seed, seconds, hotk), 1)


if __name__ == "__main__":
    sys.exit(main())
