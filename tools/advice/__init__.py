"""`onrig advise`: a race of learner configurations on randomly drawn plants."""
