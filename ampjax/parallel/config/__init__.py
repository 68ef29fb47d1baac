"""The choices of users for hybrid training: settings, machines, partitioners."""
