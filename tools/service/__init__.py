"""Service files of a rig (systemd unit, udev rule, limits): templates, and their installation."""
