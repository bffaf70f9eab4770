"""Virtual time: an event queue in which devices, links and availability decide what happens when."""
