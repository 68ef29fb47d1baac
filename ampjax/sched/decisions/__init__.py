"""What a scheduler is told and what it answers: settings, policies, dispatches, parameter changes."""
