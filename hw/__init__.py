"""Wire protocol, transports, device session and rigs. Imports nothing from the other packages."""
