"""What users choose about hybrid training: settings, machines, partitioners."""
