"""From a policy and a fixed list of Starts to numbers that can be compared, and to a report that shows them."""
