"""The log of a run: everything that the loop knew, decided and measured, as MCAP files for standard tools."""
