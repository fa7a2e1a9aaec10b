"""What hotk costs, against the same thing written by hand, measured in one run.

`python -m tests.benchmarks` prints one table with goals; each module alone prints its
part. Nothing here is a test: times are looked at, counts are asserted elsewhere.
"""
