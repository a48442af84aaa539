//! Mode `respect`: a shared cache that obeys the origin's fields. The test moves
//! the clock.

mod collapse;
mod freshness;
mod invalidation;
mod permission;
mod range;
mod stale;
mod typed;
mod validation;
mod vary;

use crate::support::respect::lines;
pub(crate) use crate::support::respect::{ALL, ok, plain};
use crate::support::{Answer, Gateway, Reply, Upstream};

fn manual(upstream: &Upstream) -> Gateway {
    plain(upstream).manual().start()
}

/// 304 with these fields.
fn not_modified(fields: &[&str]) -> Reply {
    let lines = lines(fields);
    Reply::raw(format!("HTTP/1.1 304 Not Modified\r\n{lines}\r\n"))
}

/// ordgate's own member of `cache-status`, which is the last.
fn did(answer: &Answer) -> String {
    let all = answer.all("cache-status");
    let last = all.last().unwrap_or_else(|| panic!("{answer:?}"));
    last.strip_prefix("ordgate; ").unwrap_or(last).to_owned()
}

fn is_hit(answer: &Answer) -> bool {
    did(answer).starts_with("hit")
}
