"""The homes of variables: devices, servers, or every machine."""
