"""A process of the same user, with the key, that has opened something and means harm: its neighbours go on."""
