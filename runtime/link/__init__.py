"""Messages between the rig and its learners over ZeroMQ."""
