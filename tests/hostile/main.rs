//! A hostile client next to an honest one: whatever the hostile client sends or
//! does not read, the honest client is answered within its own limits.
//!
//! Each test attacks a running gateway over loopback sockets and asserts counts of
//! what the honest client received. Timings are never asserted.

mod connections;

mod http2;

mod uploads;

mod readers;

mod admission;

mod keys;

mod requests;
