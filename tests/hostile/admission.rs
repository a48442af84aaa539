//! Admission to the upstream: slots, budget and misses of one client beside another's.
