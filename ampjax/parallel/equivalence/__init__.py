"""The equivalence of replicas with a single device."""
