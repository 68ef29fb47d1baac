"""When launches run on their devices, though only some of them are waited for."""
