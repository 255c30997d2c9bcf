"""Files that make a rig a service of the machine: systemd unit, udev rule, limits; pure texts, and a careful writer."""
