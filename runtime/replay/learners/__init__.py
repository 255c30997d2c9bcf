"""Answering learners: what they may know, who of them pushes, and what becomes of the policies they offer."""
