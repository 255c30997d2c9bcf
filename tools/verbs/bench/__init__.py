"""Benchmark a part of Onrig, compared with peer libraries if they are installed."""
