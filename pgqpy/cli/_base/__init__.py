"""What the commands have in common: declaration, output, errors, connections."""
