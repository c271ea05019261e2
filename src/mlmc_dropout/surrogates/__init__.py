"""4 · Cheap companions of a network whose moments are known in closed form.

``linear``        its first-order expansion in the masks: mean 0 and a known variance
``quadratic``     the second order, in the few directions in which the gradient changes most
``taylor``        the second order with all second derivatives, for smooth networks
``linear_head``   the last dropout, averaged out where only linear operations follow
``derivatives``   gradients of outputs with respect to masks; ``affine_check`` tells where outputs are affine
``scale``         powers of two by which numbers are divided before they are squared
"""
