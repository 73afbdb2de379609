"""Runnable examples, one per folder."""
