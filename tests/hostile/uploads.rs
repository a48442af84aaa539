//! Request bodies: malformed, aborted, or sent a byte at a time.
