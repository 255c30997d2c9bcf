"""Log of a run: all inputs, decisions and measurements of the loop, as MCAP files for standard tools."""
