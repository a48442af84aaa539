//! The table within `[upstream]` for the bodies of answers.

use std::time::Duration;

use crate::config::key::keys;
use crate::config::kinds::{DAY, MILLI, seconds, size, time};
use crate::upstream::ResponseBodyLimits;

keys! {
    /// The body of an answer, while ordgate waits for it.
    ///
    /// A body that stalls is a failure of its base URL. If it is read whole before it
    /// is passed on, the next base URL is asked, or the client gets 504. On routes with
    /// headers = "all", the client's answer breaks off. The time in which a client
    /// reads nothing does not count. On those routes, events, and answers that have
    /// neither a length nor a freshness lifetime, may be streams: they may be silent for
    /// `first_byte_timeout`, and slow.
    pub(in crate::config) struct ResponseBodyKeys {
        /// The bytes that the upstream must send per second. It may fall behind by
        /// `grace`.
        min_rate: u64 = size(1..=1 << 30) => 1024;
        /// How far the upstream may fall behind `min_rate`; also the longest silence.
        grace: Duration = time(MILLI, DAY) => seconds(10);
    }
}

impl ResponseBodyKeys {
    pub(super) fn limits(self) -> ResponseBodyLimits {
        ResponseBodyLimits {
            min_rate: *self.min_rate,
            grace: *self.grace,
        }
    }
}
