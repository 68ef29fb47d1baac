"""Where variables live: on devices, at servers, or on every machine."""
