"""One controller, many hosts: the driver decides every dispatch, and hosts, each with the memory spaces of its workers, carry the dispatches out."""
