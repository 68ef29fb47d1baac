"""The rules of control flow, each on columns of messages: routes, joins, groups, topologies."""
