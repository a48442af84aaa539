//! ordgate: a caching gateway for the Ordinals and Runes read API.
//!
//! # Map
//!
//! Leaf to root; `use` points up this list, or to the left. `tests/structure.rs`
//! holds the arrows.
//!
//! | layer | modules |
//! |---|---|
//! | basics | [`clock`], [`units`], [`wire`] |
//! | rules | [`cache`]`::{list, date, delta, directives, targeted, status, hop, freshness, invalidate, vary, reuse, storable, validator, freshen, range, key, policy, etag, outcome}`, [`pages`], [`chain`]`::{finality, ledger, runs}`, [`identify`], [`validate`], [`route`] |
//! | state | [`limit`], [`chain`], [`cache`], [`collapse`], [`upstream`], [`unsent`], [`meter`] |
//! | request path | [`refusal`], [`respond`], [`access_log`], [`relay`], [`fill`], [`look_ahead`], [`probe`], [`gateway`] |
//! | I/O | [`listener`], [`supervisor`], [`reload`], [`telemetry`], [`admin`], [`openapi`], [`sandbox`], [`config`], [`secrets`], [`serve`] |
//!
//! # Glossary
//!
//! - **caller**: whose limits a request counts against.
//! - **canonical request**: a validated request in its one spelling: what is
//!   forwarded and what is the cache key.
//! - **collapse**: to let requests for one key wait for one upstream request.
//! - **current age**, **freshness lifetime**, **fresh**, **stale**, **stored
//!   response**, **validator**: as in RFC 9111 and RFC 9110.
//! - **budget**: what the provider lets a key ask.
//! - **endpoint**: one base URL of the upstream; of several one is asked, the
//!   others are **standbys**.
//! - **line**: those who wait for a place among the requests under way, or for
//!   budget.
//! - **wish**: how urgently something is asked of the upstream, and for whom.
//! - **hedge**: a request that is sent a second time, since the first is slow.
//! - **tip**: the highest block of the chain, as one indexer of the upstream has
//!   it.
//! - **epoch**: a stretch of time in which nothing that is known of a tip
//!   changed.
//! - **class**: how settled an answer is: final, recent, live or absent.
//! - **window**: a canonical page, of `upstream_page` items, from which clients'
//!   pages are cut.
//! - **orphan**: a block that a reorg has taken out of the chain.
//! - **purge**: to see to it that what is stored, or on its way, is never
//!   answered with again.
//! - **reload**: to take up a new configuration and new secrets while serving.
//! - **supervisor**: whoever has started the process and looks after it, such as
//!   systemd.
//! - **upstream**: whoever ordgate calls: the API, at one or several endpoints.

pub mod access_log;
pub mod admin;
pub mod cache;
pub mod chain;
pub mod clock;
pub mod collapse;
pub mod config;
pub mod fill;
pub mod gateway;
pub mod identify;
pub mod limit;
pub mod listener;
pub mod look_ahead;
pub mod meter;
pub mod openapi;
pub mod pages;
pub mod probe;
pub mod refusal;
pub mod relay;
pub mod reload;
pub mod respond;
pub mod route;
pub mod sandbox;
pub mod secrets;
pub mod serve;
pub mod supervisor;
pub mod telemetry;
pub mod units;
pub mod unsent;
pub mod upstream;
pub mod validate;
pub mod wire;
