"""``onrig web``: the live page of a running or finished run; also served by ``onrig run --web``."""
