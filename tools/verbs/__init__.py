"""Verbs of ``onrig``, one module each (see ``onrig.tools.options``); their implementations are elsewhere in
``onrig.tools``.
"""
