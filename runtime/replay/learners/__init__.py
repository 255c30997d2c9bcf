"""Service for learners: requests, the lease to push, and the admission and history of offered policies."""
