"""Obtain and release against other ways to lock in the same store: python -m benchmarks.peers."""
