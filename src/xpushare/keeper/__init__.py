"""The keeper, a process that holds published memory after its publishers have ended. It uses no device."""
