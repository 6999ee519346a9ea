"""The small model that ships with headscope, trained again and set next to the shipped one."""
