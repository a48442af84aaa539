//! Routes with `headers = "all"` forward any method, field and body unchanged.

mod bodies;
mod breaks;
mod fields;
mod stalls;
mod streaming;

use crate::respect::plain;
use crate::support::{Answer, Gateway, Upstream};

fn before(upstream: &Upstream) -> Gateway {
    plain(upstream).start()
}

/// What was left on a connection after `head`, as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_refused(answer: &Answer) -> bool {
    answer.status == 502 && answer.field("proxy-status").is_some()
}
