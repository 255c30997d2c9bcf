"""Identification of a plant's parameters, with their joint uncertainty, from signals of its device."""
