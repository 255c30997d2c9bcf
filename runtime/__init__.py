"""What runs on the SBC: control loop, safety, replay, link, configuration. No torch, ever."""
