"""Identification: the parameters of a plant, with their joint uncertainty, from what its device reported."""
