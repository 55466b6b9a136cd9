"""Other frameworks, one file each, imported only when asked for."""
