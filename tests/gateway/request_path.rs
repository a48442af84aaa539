//! The modules of `tests/gateway` that `tests/h2c` and `tests/h2_tls` run again: all
//! that send well-formed requests and look at the answers.
//!
//! Left out is what is about connections (`listener`, `http2`, `tls`), the admin
//! listener and whole processes (`admin`, `operations`, `supervisor`, `deploy`,
//! `sandbox`), which have no other transport or choose their own. Within these modules,
//! a test about HTTP/1.1's own bytes connects with `Gateway::http1`.

pub(crate) mod cache;
pub(crate) mod chain;
pub(crate) mod client_tokens;
pub(crate) mod collapse;
pub(crate) mod compression;
pub(crate) mod explain;
pub(crate) mod key_leak;
pub(crate) mod limit;
pub(crate) mod named;
pub(crate) mod purge;
pub(crate) mod relay;
pub(crate) mod reload;
pub(crate) mod respect;
pub(crate) mod upstream;
pub(crate) mod upstreams;
pub(crate) mod validate;
pub(crate) mod wrong_upstream;
