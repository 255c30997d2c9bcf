"""Checks of ``onrig doctor``: one module per subject, each with a thin reader of facts and pure checks of these facts.

Only the standard library is imported until the wheels are known to work, because a wheel that crashes the interpreter
must not crash the doctor.
"""
