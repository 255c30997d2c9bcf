"""Samplers, networks, algorithms, ONNX export and the learner process. torch lives here."""
