//! State on disk: stored responses that outlive the process.
//!
//! The [`engine`] keeps bytes under keys within a bound and knows nothing of chains
//! or HTTP.

pub mod engine;
