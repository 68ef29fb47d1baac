"""What delays cost training, remedy by remedy: a leaderboard."""
