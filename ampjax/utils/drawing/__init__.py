"""Tools of pictures: colours, and figures for notebooks and files."""
