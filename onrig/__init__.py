"""Onrig: the folders of this repository as one package."""
