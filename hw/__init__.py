"""Wire protocol, transports, device session and rigs. Imports nothing of the other packages."""
