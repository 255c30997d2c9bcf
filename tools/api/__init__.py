"""The Python interface: the public names of `onrig`, one module each."""
