"""Benchmark a part of Onrig, next to peer libraries where they are installed."""
