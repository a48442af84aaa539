//! ordgate: a caching gateway for the Ordinals and Runes read API.
//!
//! [`gateway`] is the path of a request and the place to begin reading.
//!
//! # Modules
//!
//! From the lowest layer to the highest. A module uses only modules of the rows
//! above its own, or to its left in its row; `tests/structure` checks this.
//!
//! | layer | modules |
//! |---|---|
//! | basics | [`build`], [`clock`], [`sync`], [`units`], [`reason`], [`regular_file`], [`log_writer`], [`api_key`], [`wire`] |
//! | rules | [`cache`]`::{list, date, directives, outcome, coding, hop, freshness, invalidate, vary, reuse, storable, validator, freshen, range, key, policy}`, [`pages`], [`chain`]`::{freshness, ledger}`, [`identify`], [`client_tokens`]`::{file, redact}`, [`validate`], [`route`] |
//! | state | [`connections`], [`wire`]`::{stream, body}`, [`events`], [`chain`], [`state`]`::{value}`, [`state`], [`trace`], [`limit`], [`client_tokens`], [`cache`], [`compress`], [`collapse`], [`shared`]`::{engine, purges}`, [`shared`], [`meter`], [`upstream`], [`failure_backoff`] |
//! | request path | [`refusal`], [`respond`], [`access_log`], [`fill`], [`probe`], [`gateway`] |
//! | I/O | [`secrets`], [`tls`], [`listener`], [`supervisor`], [`reload`], [`telemetry`], [`history`], [`admin`], [`openapi`], [`sandbox`], [`config`], [`serve`] |
//!
//! # Glossary
//!
//! Other terms are those of RFC 9110, 9111, 9209 and 9211.
//!
//! - **tip**: the highest block that an indexer reports.
//! - **epoch**: a period between two changes of the chain (a new tip, a reorg,
//!   another endpoint), and its number.
//! - **finality class**: how settled a stored response is: final, recent, live or
//!   absent.
//! - **window**: a page of `upstream_page` items at a multiple of it, from which
//!   clients' pages are cut.
//! - **orphan**: a block that a reorg has removed from the chain.
//! - **chain stamp**: what a stored response records of the chain: its finality
//!   class, the heights it names, and the epoch in which it was fetched.
//! - **plain route**: a route in mode `respect` or with `headers = "all"`.

pub mod access_log;
pub mod admin;
mod api_key;
pub mod build;
pub mod cache;
pub mod chain;
pub mod client_tokens;
pub mod clock;
pub mod collapse;
pub mod compress;
pub mod config;
pub mod connections;
mod events;
pub mod failure_backoff;
pub mod fill;
pub mod gateway;
pub mod history;
pub mod identify;
pub mod limit;
pub mod listener;
pub mod log_writer;
pub mod meter;
pub mod openapi;
pub mod pages;
pub mod probe;
pub mod reason;
pub mod refusal;
pub mod regular_file;
pub mod reload;
pub mod respond;
pub mod route;
pub mod sandbox;
pub mod secrets;
pub mod serve;
pub mod shared;
pub mod state;
pub mod supervisor;
pub mod sync;
pub mod telemetry;
pub mod tls;
pub mod trace;
pub mod units;
pub mod upstream;
pub mod validate;
pub mod wire;
