//! Chain events: a stream for clients that want to know when answers may have changed
//! (`GET /events`, the server-sent events of the HTML standard).
//!
//! Whoever changes what is known of a tip adds an event, once requests are answered by the new
//! state ([`Events::status`], [`Events::reorg`]). [`Events`] is a log of the last ones, which all
//! gateways of the process share. A listener is a place in the log, and the text of an event is
//! made once for all; a listener that is behind by more than the log holds is dropped.
//!
//! An event's *mark* is made of its tip's height, a digest of the tip's tag, and what is said of
//! it. Its id has the mark of the last event of each tip. So every process that has seen the same
//! gives it the same id, and knows what a client that comes back has missed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::ready;
use futures_util::stream::{StreamExt, once, unfold};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::validator::digits;
use crate::connections::Activity;
use crate::wire::Body;
use crate::wire::stream::BodyReader;

/// The path on public listeners.
pub(crate) const PATH: &str = "/events";

/// The events that are kept.
const MOST_EVENTS: usize = 64;
/// After so long without an event a comment is sent, so that no proxy takes the connection for
/// dead, and a client that has gone is noticed.
const QUIET: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// How many milliseconds after the end clients connect again: not all at once.
const RETRY: Range<u32> = 1_000..5_000;

/// The events of the process.
#[derive(Default)]
pub(crate) struct Events(watch::Sender<Log>);

#[derive(Default)]
struct Log {
    /// The last events.
    events: VecDeque<Event>,
    /// How many there were before them.
    before: u64,
    /// The tips that have been known, by the beginning of their marks.
    tips: BTreeMap<String, KnownTip>,
    is_draining: bool,
}

struct Event {
    mark: String,
    text: Bytes,
}

/// A tip as listeners know it.
#[derive(Default)]
struct KnownTip {
    /// The mark of its event `tip`, such as `runes/840123/1c291ca3/`; others continue it.
    tip: String,
    /// The text of that event, without an id.
    text: String,
    /// What the marks of a reorg since then, and of what follows, add: the height.
    reorg: String,
    /// The mark of its last event.
    last: String,
    is_settled: bool,
}

/// The beginning of the marks of a tip.
fn prefix(name: &str) -> String {
    format!("{}/", utf8_percent_encode(name, NON_ALPHANUMERIC))
}

impl Events {
    /// A status names a tip, by its height and by what any process calls it. Sends `tip` where it
    /// is another one than before, and `settled` once it is settled.
    pub(crate) fn status(&self, name: &str, height: u32, mark: &[u8], is_settled: bool) {
        let tip = format!("{}{height}/{:.8}/", prefix(name), digits(mark));
        self.0.send_if_modified(|log| {
            let known = log.tips.entry(prefix(name)).or_default();
            let is_new = known.tip != tip;
            let settles = is_settled && (is_new || !known.is_settled);
            known.is_settled = is_settled;
            if is_new {
                known.tip.clone_from(&tip);
                known.reorg.clear();
                log.add(name, "tip", ("height", height), "");
            }
            if settles {
                log.add(name, "settled", ("height", height), "settled/");
            }
            is_new || settles
        });
    }

    /// Blocks of a tip's chain were replaced from a height on, or may have been, and what names
    /// them is purged.
    pub(crate) fn reorg(&self, name: &str, from: u32) {
        self.0.send_if_modified(|log| {
            let Some(known) = log.tips.get_mut(&prefix(name)) else {
                return false;
            };
            // What is live is asked for again after a while, as after a new tip.
            known.is_settled = false;
            known.reorg = format!("{from}/");
            log.add(name, "reorg", ("from", from), "");
            true
        });
    }

    /// Ends all streams; their clients may connect again elsewhere.
    pub(crate) fn drain(&self) {
        self.0.send_modify(|log| log.is_draining = true);
    }

    /// The stream for a connection: what its client has missed of these tips since the event
    /// `last_id`, or the tips as they are where that is not known; then all that happens to them.
    pub(crate) fn listen(&self, of: &Arc<Activity>, tips: &[&str], last_id: &str) -> Body {
        let mut listener = Listener {
            log: self.0.subscribe(),
            tips: tips.iter().map(|tip| prefix(tip)).collect(),
            named: Vec::new(),
            next: 0,
            is_over: false,
        };
        let first = ready(listener.begin(last_id));
        let texts = once(first).chain(unfold(listener, Listener::next));
        let frames = StreamBody::new(texts.map(|text| Ok(Frame::data(text))));
        let mut reader = BodyReader::of(frames.boxed_unsync(), None);
        reader.serve(of);
        of.is_listening.store(true, Relaxed);
        Body::Streamed(Box::new(reader))
    }
}

impl Log {
    /// Adds an event of a tip, whose mark ends like this.
    fn add(&mut self, name: &str, event: &str, (member, number): (&str, u32), end: &str) {
        let known = self.tips.entry(prefix(name)).or_default();
        let mark = format!("{}{}{end}", known.tip, known.reorg);
        let tip = json!(name);
        let text = format!("event: {event}\ndata: {{\"tip\":{tip},\"{member}\":{number}}}\n");
        known.last.clone_from(&mark);
        if event == "tip" {
            known.text.clone_from(&text);
        }
        let text = format!("{text}{}", self.id()).into();
        self.events.push_back(Event { mark, text });
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
            self.before += 1;
        }
    }

    /// The end of an event: the id of the last one.
    fn id(&self) -> String {
        let marks: Vec<_> = self.tips.values().map(|known| &*known.last).collect();
        format!("id: {}\n\n", marks.join(" "))
    }
}

/// A client that listens.
struct Listener {
    log: watch::Receiver<Log>,
    /// The beginnings of the marks that it is sent.
    tips: Vec<String>,
    /// Marks that its last id has and the log has not, for each tip of which nothing was sent:
    /// events up to there are not repeated, should they come.
    named: Vec<String>,
    /// The number of the next event.
    next: u64,
    is_over: bool,
}

impl Listener {
    /// What it is sent first.
    fn begin(&mut self, last_id: &str) -> Bytes {
        let log = self.log.borrow_and_update();
        let mut first = Vec::new();
        for tip in &self.tips {
            let named = last_id.split(' ').find(|mark| mark.starts_with(tip));
            // Where a tip has come back, rather too much than too little is sent.
            let mut events = log.events.iter();
            if events.any(|event| Some(&*event.mark) == named) {
                let missed = events.filter(|event| event.mark.starts_with(tip));
                missed.for_each(|event| first.extend_from_slice(&event.text));
                continue;
            }
            let known = log.tips.get(tip);
            let is_had = |named: &&str| known.is_none_or(|known| named.starts_with(&known.tip));
            match (named.filter(is_had), known) {
                (Some(named), _) => self.named.push(named.to_owned()),
                (None, Some(known)) => first.extend([known.text.as_bytes(), b"\n"].concat()),
                (None, None) => {}
            }
        }
        // Without data it is no event, and its id counts.
        first.extend(log.id().into_bytes());
        self.next = log.before + log.events.len() as u64;
        first.into()
    }

    /// What it is sent next; `None` at the end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        while !self.is_over {
            if let Some(text) = self.take() {
                return Some((text, self));
            }
            match timeout(QUIET, self.log.changed()).await {
                Ok(changed) => changed.ok()?,
                Err(_elapsed) => return Some((COMMENT, self)),
            }
        }
        None
    }

    /// What it is sent next, if there is something.
    fn take(&mut self) -> Option<Bytes> {
        let log = self.log.borrow_and_update();
        // None, where it is too far behind.
        let place = self.next.checked_sub(log.before);
        let place = place.map_or(usize::MAX, |place| place as usize);
        for event in log.events.iter().skip(place) {
            self.next += 1;
            let Some(tip) = self.tips.iter().find(|tip| event.mark.starts_with(*tip)) else {
                continue;
            };
            let named = self.named.iter().position(|named| named.starts_with(tip));
            match named {
                Some(at) if self.named[at].starts_with(&event.mark) => continue,
                Some(at) => drop(self.named.swap_remove(at)),
                None => {}
            }
            return Some(event.text.clone());
        }
        self.is_over = log.is_draining || place == usize::MAX;
        let retry = || format!("retry: {}\n\n", fastrand::u32(RETRY)).into();
        self.is_over.then(retry)
    }
}

#[cfg(test)]
mod tests;
