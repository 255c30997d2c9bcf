"""``onrig policy to-c``: a policy as a C99 function, with a check against onnxruntime."""
