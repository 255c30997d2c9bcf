"""Samplers, networks, algorithms, ONNX export and the learner process. No torch."""
