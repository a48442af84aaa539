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
/// All but what is about the upstream's HTTP/2 connections (`http2`: it opens more client
/// connections than one client may do handshakes), measures its speed (`concurrency`) or counts its requests for
/// minutes of the test's clock (`freeze`, `connection_caps`), for which the client's
/// transport only takes time.
pub(crate) mod upstream {
    pub(crate) mod breaker;
    pub(crate) mod budget;
    pub(crate) mod certificates;
    pub(crate) mod failover;
    pub(crate) mod failure_backoff;
    pub(crate) mod failures;
    pub(crate) mod fairness;
    pub(crate) mod faults;
    pub(crate) mod forwarding;
    pub(crate) mod hedging;
    pub(crate) mod key_quarantine;
    pub(crate) mod name_resolution;
    mod operator_view;
    pub(crate) mod reasons;
    pub(crate) mod reported_limits;
    pub(crate) mod throttling;
    pub(crate) mod tls;

    use operator_view::{key, keyed, metric, must_wait, until_idle};
}
pub(crate) mod upstreams;
pub(crate) mod validate;
pub(crate) mod wrong_upstream;
