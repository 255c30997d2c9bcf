"""Everything that runs on the SBC: control loop, safety, replay, link and configuration, all without torch."""
