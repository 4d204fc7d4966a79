"""The tables behind `policy_gradient`: each option has a name, a function and the parameters that it reads."""
