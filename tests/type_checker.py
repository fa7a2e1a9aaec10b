"""The type checker that pytest puts around every function of hotk."""

from beartype import BeartypeConf, beartype


# As pyright reads annotations: an `int` may stand for a `float`, both for a `complex`.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
