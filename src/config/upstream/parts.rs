//! The tables within `[upstream]`: bodies, retries and the breaker.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::config::cache::fit_least_and_most;
use crate::config::key::keys;
use crate::config::kinds::{DAY, Flag, MILLI, count, integer, seconds, size, time};
use crate::config::problem::{FileSpan, Path};
use crate::upstream::Retry;
use crate::upstream::client::response_body;
use crate::upstream::endpoint::breaker;

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

keys! {
    /// When a failed request is sent again: after a short random delay, where that is
    /// safe and may help, because the connection was refused or ended, or 502, 503 or
    /// 504 came.
    ///
    /// If there is another base URL, it is asked at once, whatever the failure, and
    /// these limits do not apply. The end of one HTTP/2 connection is one failure, here
    /// and for the breaker, however many requests were on it. What the server says that
    /// it has not processed (REFUSED_STREAM and GOAWAY of HTTP/2) is sent again up to
    /// five times; that is no failure, and these limits do not apply.
    pub(in crate::config) struct RetryKeys {
        /// How often one request is sent again at most; 0 for never.
        limit: u32 = integer(0..=10) => 1;
        /// The most retries in percent of all requests; three in ten seconds are allowed
        /// in any case.
        share: u32 = integer(0..=100) => 20;
    }
}

keys! {
    /// A server that keeps failing (it cannot be reached, ends connections, takes too
    /// long, answers 5xx or something that is not an answer) is not asked for a while.
    ///
    /// Clients get a stale answer, or 503 with retry-after, at once. Then one request
    /// tries the server. If it is answered, more and more follow. They open the breaker
    /// again, for as long as before, if `failures` in a row fail, or `share` of twice as
    /// many.
    pub(in crate::config) struct BreakerKeys {
        /// Whether there is a breaker.
        enabled: bool = Flag => true;
        /// How many failures in a row open it.
        failures: NonZeroU32 = integer(1..=1_000_000) => count(10);
        /// What percentage of failures within `window` opens it, if there were at least
        /// twice as many requests as `failures`.
        share: NonZeroU32 = integer(1..=100) => count(80);
        /// The time in which `share` is counted.
        window: Duration = time(MILLI, DAY) => seconds(30);
        /// How long a server is first left alone. The time doubles whenever the first
        /// request after it fails.
        pause: Duration = time(MILLI, DAY) => seconds(1);
        /// The longest time that a server is left alone; at least `pause`.
        max_pause: Duration = time(MILLI, DAY) => seconds(60);
    }
}

impl ResponseBodyKeys {
    pub(super) fn limits(self) -> response_body::ResponseBodyLimits {
        response_body::ResponseBodyLimits {
            min_rate: *self.min_rate,
            grace: *self.grace,
        }
    }
}

impl RetryKeys {
    pub(super) fn settings(self) -> Retry {
        Retry {
            limit: *self.limit,
            share: *self.share,
        }
    }
}

impl BreakerKeys {
    pub(super) fn fit(&mut self, path: &Path<'_>, at: &FileSpan) {
        fit_least_and_most(
            path,
            at,
            ("pause", &self.pause),
            ("max_pause", &mut self.max_pause),
        );
    }

    pub(super) fn settings(self) -> breaker::Settings {
        breaker::Settings {
            enabled: *self.enabled,
            failures: *self.failures,
            share: *self.share,
            window: *self.window,
            pause: *self.pause,
            max_pause: *self.max_pause,
        }
    }
}
