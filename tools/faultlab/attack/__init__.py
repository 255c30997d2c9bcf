"""The attack: campaigns against a rig and what it takes in, each in pieces."""
