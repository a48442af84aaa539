//! Forms that mean the same in another process: of the state on disk, which a later
//! process reads, and of what replicas tell each other.
//!
//! The numbers of routes and tips are valid within one process. Here both are named by
//! digests of what they mean ([`digest`]), and what was purged, or is stored, with them.

pub(crate) mod bytes;
pub(crate) mod codec;
pub(crate) mod digest;
pub(crate) mod meanings;
pub(crate) mod names;
pub(crate) mod purge;
pub(crate) mod variants;
