"""Checks of ``onrig doctor``: one module per subject, each a thin reader of facts and a pure verdict.

Nothing here needs more than the standard library until the wheels are known to work: a wheel that crashes the
interpreter must not crash the doctor.
"""
