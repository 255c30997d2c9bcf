"""Service files of a rig (systemd unit, udev rule, limits): pure templates, and an atomic writer."""
