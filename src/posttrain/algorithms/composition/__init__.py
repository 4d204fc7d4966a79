"""The tables behind `policy_gradient`: each choice of the family is a name with a function and what it reads."""
