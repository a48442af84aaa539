//! Connections: how many one client may hold, and what it sends on them.
