"""Fuzz hotk against raw JAX.

python -m tests.fuzz --quick                       one minute on one core
python -m tests.fuzz --quick --daily               the same, other programs each day
python -m tests.fuzz --programs 10000 --seed 0     the long form, about two hours
python -m tests.fuzz --programs 500 --every        all calls of each program

A program is called by an operator drawn at random before anything else has run it, then
directly, as a fresh closure in another state, and prepared. One more call is drawn from
the four nestings, the other operators, `jit`, `vmap`, `jvp`, loops and `shard_map`
around it, settings and named axes, and NumPy arrays written in place. `--every` makes
them all. Afterwards plain JAX must compute what it computed before.

Prints programs per second, what was explained and why, and each failure as a program
that can be pasted and run. Exits with 1 if anything failed.
"""

import argparse
import collections
import datetime
import sys
import time
import warnings

import jax
import numpy as np

import hotk

from .check import Failure, Verdict, check
from .program import Program, random_program, snippet
from .shrink import shrink


SETTINGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}
QUICK_SECONDS = 60
CLEARED = 50  # programs, after which what JAX keeps of them has grown to a gigabyte
SHRUNK = 5  # failures; a sixth is hardly needed to see what is wrong


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


def run(programs: int, seed: int, seconds: float, *, every: bool) -> int:
    """Check programs until their number or the time is reached; return the failures."""
    rng = np.random.default_rng(seed)
    failures, reasons, kinds = [], collections.Counter(), collections.Counter()
    compared, done, start = 0, 0, time.monotonic()
    while done < programs and time.monotonic() - start < seconds:
        program = random_program(rng)
        try:
            verdict = check(program, hotk, extra="all" if every else "one")
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
                    found = check(smaller, hotk, extra=call).failure
                except Exception:
                    return False
                return found is not None and found.call == call

            small = program  # as drawn where raw JAX is what fails, or there are many
            if call != "# raw JAX" and len(failures) < SHRUNK:
                small = shrink(program, fails)
            again = check(small, hotk, extra=call) if small != program else verdict
            failures.append(again.failure or verdict.failure)
            print(report(failures[-1]), flush=True)
        if done % CLEARED == 0:
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
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="at most one minute")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--daily", action="store_true", help="the date is the seed")
    parser.add_argument("--every", action="store_true", help="every call, not a few")
    options = parser.parse_args()
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    for category in (hotk.OpaqueWarning, hotk.ChangingValueWarning):
        warnings.filterwarnings("ignore", category=category)  # both are on purpose
    seconds = QUICK_SECONDS if options.quick else float("inf")
    seed = options.seed
    if options.daily:
        seed = int(datetime.date.today().strftime("%Y%m%d"))
    print(f"seed {seed}", flush=True)
    failures = run(options.programs, seed, seconds, every=options.every)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
