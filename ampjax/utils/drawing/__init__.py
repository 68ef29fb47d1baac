"""What pictures are drawn with: colours, and figures that show and save themselves."""
