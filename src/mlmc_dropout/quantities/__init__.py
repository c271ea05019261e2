"""Pure formulas of what people ask about predictions; nothing here samples.

``outputs``      what a network returns -> class probabilities, or means and variances
``uncertainty``  entropies of class probabilities, and what they say about data and model
"""
