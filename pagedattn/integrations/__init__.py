"""Adapters between pagedattn and model libraries."""
