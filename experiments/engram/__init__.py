"""Tables of n-grams beside a small language model (Engram): loss at equal time, loss with late rows, and the time of a step."""
