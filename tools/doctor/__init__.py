"""What ``onrig doctor`` looks at: one module per subject, each a thin reader of facts and a pure judgement over them.

Nothing here needs more than the standard library until the wheels are known to work: a wheel that kills the
interpreter must not take the doctor along.
"""
