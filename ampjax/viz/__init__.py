"""Pictures of graphs, schedules and convergence."""
