"""Real-time loop: a pure tick and a thin process around it."""
