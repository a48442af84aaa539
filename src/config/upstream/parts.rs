//! The tables within `[upstream]`: bodies, retries and the breaker.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::config::cache::{fit_least_and_most, fit_part_and_whole};
use crate::config::key::keys;
use crate::config::kinds::{DAY, Flag, MILLI, count, integer, seconds, size, time};
use crate::config::problem::{FileSpan, Path};
use crate::upstream::Retry;
use crate::upstream::client::{response_body, upload};
use crate::upstream::endpoint::breaker;

keys! {
    /// The body of a request, on routes with headers = "all".
    ///
    /// A request takes a slot at the upstream when its body has arrived. A body up to
    /// `buffer` is read whole first and sent with its length. A longer one takes the
    /// slot when that much has arrived, and the rest is streamed. A body that breaks
    /// off or is malformed, too slow or too large is the client's fault: the client
    /// gets 400, 408 or 413, and nothing counts against the upstream.
    pub(in crate::config) struct RequestBodyKeys {
        /// How much of a body is buffered before the request takes a slot.
        buffer: u64 = size(1024..=16 << 20) => 64 << 10;
        /// The most memory for the buffered bodies of one client. A body beyond it gets
        /// 503 with retry-after.
        max_buffered_per_client: u64 = size(1024..=1 << 32) => 2 << 20;
        /// The most memory for all buffered bodies. A body beyond it gets 503 with
        /// retry-after.
        max_buffered: u64 = size(1024..=1 << 40) => 16 << 20;
        /// The bytes that a client must send per second.
        ///
        /// It may fall behind by `grace`. The time in which the upstream takes nothing
        /// does not count.
        min_rate: u64 = size(1..=1 << 30) => 1024;
        /// How far a client may fall behind `min_rate`; also the longest silence.
        grace: Duration = time(MILLI, DAY) => seconds(10);
        /// The longest time from a body's first byte to its last.
        timeout: Duration = time(MILLI, DAY) => seconds(600);
        /// The longest body.
        max_bytes: u64 = size(1024..=1 << 40) => 1 << 30;
    }
}

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

impl RequestBodyKeys {
    /// Fits what is not set to what is, and reports what does not go together.
    pub(super) fn fit(&mut self, path: &Path<'_>, at: &FileSpan) {
        let whole = ("timeout", &mut self.timeout);
        fit_part_and_whole(path, at, ("grace", &mut self.grace), whole);
        let is_bounded = self.max_buffered.is_set();
        let room = if is_bounded {
            *self.max_buffered
        } else {
            u64::MAX
        };
        let is_set = self.max_buffered_per_client.is_set();
        let per_client = &mut self.max_buffered_per_client.value;
        if !is_set {
            *per_client = (*per_client).min(room);
        }
        if !self.buffer.is_set() {
            self.buffer.value = self.buffer.value.min(*per_client);
        }
        if !is_set {
            *per_client = (*per_client).max(*self.buffer).min(room);
        }
        if !self.max_buffered.is_set() {
            self.max_buffered.value = self.max_buffered.value.max(*per_client);
        }
        let all = [
            &self.buffer,
            &self.max_buffered_per_client,
            &self.max_buffered,
        ];
        if all.iter().any(|key| key.is_wrong) {
            return;
        }
        // The problem names the keys that are set.
        let holds_buffer = match is_set {
            true => (&self.max_buffered_per_client, "max_buffered_per_client"),
            false => (&self.max_buffered, "max_buffered"),
        };
        for ((less, less_name), (more, more_name)) in [
            ((&self.buffer, "buffer"), holds_buffer),
            (
                (&self.max_buffered_per_client, "max_buffered_per_client"),
                (&self.max_buffered, "max_buffered"),
            ),
        ] {
            if **less > **more {
                let more = path.key(more_name);
                path.key(less_name).problem(
                    less.at_or(at),
                    format!("is more than {}; allowed is at most as much", more.name()),
                );
            }
        }
    }

    pub(super) fn limits(self) -> upload::RequestBodyLimits {
        upload::RequestBodyLimits {
            buffer: *self.buffer,
            max_buffered: *self.max_buffered,
            max_buffered_per_client: *self.max_buffered_per_client,
            min_rate: *self.min_rate,
            grace: *self.grace,
            timeout: *self.timeout,
            max_bytes: *self.max_bytes,
        }
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
