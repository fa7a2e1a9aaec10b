"""Losses and residuals as people write them, with the idioms of many libraries."""
