"""Whether replicas together compute what a single device computes."""
