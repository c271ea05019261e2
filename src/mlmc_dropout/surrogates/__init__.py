"""5 · What is known in closed form about the passes of a network.

``first_order``   its expansion in the masks: mean 0 and a known variance
``second_order``  the same in the few directions where the gradient changes most
``heads``         the last dropout, averaged out where a linear map follows; ``linearity`` tells whether one does
"""
