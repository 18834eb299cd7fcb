"""The mathematics of GRPO: pure functions of arrays. No config, no model, no strings, no randomness.

logprobs    tokens and logits -> log-probs, entropies, masks
advantages  rewards of a group -> advantages
objectives  ratios, and what is maximised: clip, CISPO, SAPO
penalties   estimators of the KL divergence from the reference
safeguards  weights against off-policy data
reduce      token values -> one number
pieces      name, function and formula of all of these
policy_loss the one composition of them that every variant uses
"""
