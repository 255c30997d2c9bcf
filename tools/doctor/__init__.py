"""Checks of ``onrig doctor``: one module per subject, each with a thin reader of facts and pure checks of them.

Until the wheels are known to work, only the standard library is imported: a wheel that crashes the interpreter must not
crash the doctor.
"""
