"""Conformance of a device with the numbered rules of ``hw/PROTOCOL.md``, as observable by a host."""
