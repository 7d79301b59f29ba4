"""A microscope for routers: the choices of every routed block on a text, what they tell, and a page to look at."""
