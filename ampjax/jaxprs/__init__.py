"""Analysis and slicing of jaxprs."""
