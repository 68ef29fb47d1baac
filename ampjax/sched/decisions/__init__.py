"""The inputs and outputs of a scheduler: settings, policies, dispatches, parameter changes."""
