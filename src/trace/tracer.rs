//! Which requests are recorded, and the spans that wait for export.
//!
//! A client may ask for its request to be recorded, by the flag in its `traceparent`.
//! So that it cannot make ordgate record everything, nor displace what others want
//! recorded, both are bounded for each second: the traces of all clients, and those of
//! one. Spans wait in a bounded queue; what finds it full is dropped and counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::sync::lock;
use crate::trace::context::SpanContext;
use crate::trace::span::SpanRecord;

/// The most spans that wait for export.
const MOST_WAITING: usize = 2048;
/// The most spans in one export; when so many wait, they are exported at once.
pub(crate) const BATCH: usize = 512;

/// The configuration of traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The share of the requests without `traceparent` that are recorded, from 0 to 1.
    pub sample: f64,
}

/// The most traces that are recorded in a second, and the most of them that are one client's.
const MAX_TRACES: u32 = 100;
const MAX_TRACES_PER_CLIENT: u32 = 10;

/// Decides which requests are recorded, and keeps their spans until they are exported.
/// It survives reloads.
pub struct Tracer {
    settings: Mutex<Settings>,
    /// The traces of the present second.
    second: Mutex<Second>,
    waiting: Mutex<VecDeque<SpanRecord>>,
    full: Notify,
    /// What became of spans.
    pub(crate) counts: SpanCounts,
    pub(crate) clock: Clock,
}

/// What became of spans, and of requests that were to be recorded.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    /// Spans that the collector has accepted.
    pub(crate) exported: AtomicU64,
    /// Spans that found the queue full.
    pub(crate) dropped: AtomicU64,
    /// Spans that the collector has refused, or did not accept in time.
    pub(crate) failed: AtomicU64,
    /// Requests that were not recorded, because of the most traces of a second.
    pub(crate) limited: AtomicU64,
}

#[derive(Default)]
struct Second {
    number: u64,
    all: u32,
    /// At most as many clients as `max_traces`.
    clients: HashMap<Client, u32>,
}

impl Tracer {
    /// A tracer under these settings.
    pub(crate) fn new(settings: Settings, clock: Clock) -> Self {
        Self {
            settings: Mutex::new(settings),
            second: Mutex::default(),
            waiting: Mutex::default(),
            full: Notify::new(),
            counts: SpanCounts::default(),
            clock,
        }
    }

    /// Adopts new settings.
    pub(crate) fn set(&self, settings: Settings) {
        *lock(&self.settings) = settings;
    }

    /// Whether a request of a client is recorded: by the word of its parent, otherwise
    /// by chance. `random` is uniformly distributed.
    pub(crate) fn admits(
        &self,
        client: Client,
        parent: Option<SpanContext>,
        random: f64,
        now: Moment,
    ) -> bool {
        let settings = *lock(&self.settings);
        let is_wanted = match parent {
            Some(parent) => parent.is_sampled(),
            None => random < settings.sample,
        };
        if !is_wanted {
            return false;
        }
        let is_admitted = lock(&self.second).admit(client, now);
        if !is_admitted {
            self.counts.limited.fetch_add(1, Relaxed);
        }
        is_admitted
    }

    /// Keeps a span for export, unless the queue is full.
    pub(crate) fn keep(&self, span: SpanRecord) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= MOST_WAITING {
            drop(waiting);
            self.counts.dropped.fetch_add(1, Relaxed);
            return;
        }
        waiting.push_back(span);
        if waiting.len() >= BATCH {
            self.full.notify_one();
        }
    }

    /// Waits until enough spans wait for an export, at most for a time.
    pub(crate) async fn wait(&self, most: Duration) {
        // The time is over, or the spans are there: both are a reason to look.
        let _elapsed = tokio::time::timeout(most, self.full.notified()).await;
    }

    /// Takes the oldest spans, at most a batch.
    pub(crate) fn take(&self) -> Vec<SpanRecord> {
        let mut waiting = lock(&self.waiting);
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    /// The number of spans that wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }
}

impl Second {
    fn admit(&mut self, client: Client, now: Moment) -> bool {
        let number = now.millis() / 1000;
        if number != self.number {
            self.number = number;
            self.all = 0;
            self.clients.clear();
        }
        if self.all >= MAX_TRACES {
            return false;
        }
        let own = self.clients.entry(client).or_default();
        let is_admitted = *own < MAX_TRACES_PER_CLIENT;
        if is_admitted {
            *own += 1;
            self.all += 1;
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::trace::context::{SpanId, TRACEPARENT, TraceId};
    use crate::trace::span::SpanKind;

    const SETTINGS: Settings = Settings { sample: 0.25 };

    fn parent(flags: &str) -> Option<SpanContext> {
        let value = format!("00-{:032x}-{:016x}-{flags}", 1, 1);
        let fields = HeaderMap::from_iter([(TRACEPARENT, value.parse().unwrap())]);
        SpanContext::of(&fields)
    }

    #[test]
    fn the_parent_decides_then_chance() {
        for (parent, random, expected) in [
            (parent("01"), 0.99, true),
            (parent("00"), 0.0, false),
            (None, 0.0, true),
            (None, 0.249, true),
            (None, 0.25, false),
        ] {
            let clock = Clock::manual();
            let tracer = Tracer::new(SETTINGS, clock.clone());
            let admitted = tracer.admits(Client::V4(1), parent, random, clock.now());
            assert_eq!(admitted, expected, "{parent:?} {random}");
            assert_eq!(tracer.counts.limited.load(Relaxed), 0);
        }
        let none = Tracer::new(Settings { sample: 0.0 }, Clock::manual());
        assert!(!none.admits(Client::V4(1), None, 0.0, Moment::default()));
    }

    #[test]
    fn a_flood_of_one_client_leaves_the_traces_of_others() {
        let clock = Clock::manual();
        let tracer = Tracer::new(SETTINGS, clock.clone());
        let admits = |client| tracer.admits(Client::V4(client), parent("01"), 1.0, clock.now());
        let flood = (0..1000).filter(|_| admits(1)).count();
        assert_eq!(flood, 10);
        assert!(admits(2), "an honest client");
        assert_eq!(tracer.counts.limited.load(Relaxed), 990);
        // All together have their bound too, and so has the table.
        let all = (10..1000).filter(|client| admits(*client)).count();
        assert_eq!(all, 100 - 11);
        assert!(lock(&tracer.second).clients.len() <= 100);
        clock.advance(Duration::from_secs(1));
        assert!(admits(1), "the next second");
    }

    #[test]
    fn the_queue_is_bounded_and_what_is_dropped_is_counted() {
        let tracer = Tracer::new(SETTINGS, Clock::manual());
        for number in 1..=MOST_WAITING as u64 + 7 {
            let span = SpanId::new(number);
            tracer.keep(SpanRecord {
                context: SpanContext::recorded(TraceId::new(1), span, None),
                parent: None,
                is_parent_remote: false,
                state: None,
                name: "test".into(),
                kind: SpanKind::Internal,
                began: Moment::default(),
                ended: Moment::default(),
                attributes: Vec::new(),
                links: Vec::new(),
                failed: false,
            });
        }
        assert_eq!(tracer.waiting(), MOST_WAITING);
        assert_eq!(tracer.counts.dropped.load(Relaxed), 7);
        let batch = tracer.take();
        assert_eq!(batch.len(), BATCH);
        assert_eq!(batch[0].context.span, SpanId::new(1), "the oldest first");
    }
}
