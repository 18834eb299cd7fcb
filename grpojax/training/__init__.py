"""The compiled programs (generate, score, update; admit and decode for evaluations), and the loop that runs them."""
