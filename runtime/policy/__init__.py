"""Policies on the rig: their contract, their admission, and the session that runs them."""

import os

# Otherwise onnxruntime (1.32) reports its use over the network and keeps a database, in a thread of every process that
# imports it, including the control process.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
