"""Serving learners: requests, the lease to push, and the judgement and fate of offered policies."""
