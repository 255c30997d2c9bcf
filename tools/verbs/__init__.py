"""The verbs of ``onrig``, one module each (see ``onrig.tools.options``); what they do is in the rooms beside."""
