"""The limits file: what a login of the user may ask for, so that `onrig run` from a terminal gets real time, too."""

from __future__ import annotations

from onrig.tools.installation.service import MARK, Service


def limits_text(s: Service) -> str:
    """Write the file of pam_limits (limits.conf(5))."""
    return f"{MARK}\n{s.user} - rtprio 99\n{s.user} - memlock unlimited\n"
