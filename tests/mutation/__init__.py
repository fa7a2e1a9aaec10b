"""Flaws put into hotk on purpose: the tests must notice each one."""
