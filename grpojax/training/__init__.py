"""The three compiled programs (generate, score, update), and the loop that runs them."""
