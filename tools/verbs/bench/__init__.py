"""Benchmark a part of Onrig, and compare it with peer libraries if they are installed."""
