//! What must hold of every answer, whatever happened before it.
//!
//! The upstream's bodies end in a number, written in blanks, that says which
//! request brought them. JSON does not mind, and what is cut from a body keeps
//! it: so an answer says where it is from, and how old it is. Tokens' bodies are
//! compared by ordgate, so that they have it in their content type.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use ordgate::cache::purge::Purge;
use ordgate::pages::{Hash, hash};
use ordgate::upstream::Priority;

use crate::play::brief;
use crate::tally::Tally;
use crate::weather::Weather;
use crate::world::{BlockId, RUNES, Subject, Target, Thing, Time, World};

const FINAL_DEPTH: u32 = 6;

/// How long after the status of a new tip was answered the looks at blocks that
/// it causes may take, where the upstream is fast and never fails.
const LOOKS: Time = 2_000;

/// So many times `live_ttl` a token's answer is used at the most, however many
/// checks of others were good.
const MOST_CHECKED: Time = 20;

/// A client's request.
pub(crate) struct Sent {
    pub(crate) text: String,
    pub(crate) target: Target,
    had: Option<HeaderValue>,
    nth: u64,
    at: Time,
    /// When the probe was sent by which ordgate knew the tip.
    confirmed: Option<Time>,
    peak: u32,
    over: bool,
}

impl Sent {
    pub(crate) fn new(
        text: String,
        target: Target,
        had: Option<HeaderValue>,
        nth: u64,
        at: Time,
    ) -> Self {
        Self {
            text,
            target,
            had,
            nth,
            at,
            confirmed: None,
            peak: 0,
            over: false,
        }
    }
}

/// What a client got.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) content_type: String,
    pub(crate) cache_status: String,
    pub(crate) cache_control: String,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn says(&self, word: &str) -> bool {
        self.cache_status.contains(word)
    }

    fn max_age(&self) -> Option<u64> {
        let control = self.cache_control.split(", ");
        let mut ages = control.filter_map(|part| part.strip_prefix("max-age="));
        Some(ages.next()?.parse().unwrap())
    }
}

/// A request to the upstream.
pub(crate) struct Asked {
    pub(crate) text: String,
    pub(crate) target: Target,
    pub(crate) sent: Time,
    nth: u64,
    tag: usize,
    /// The version that the body tells of, when that was looked up, and what it
    /// is about.
    body: usize,
    looked_up: Time,
    thing: Option<Thing>,
    delivered: Option<Time>,
    over: bool,
    /// Of a body that shows a reorg, the lowest height that shows it.
    shows: Option<u32>,
}

/// An answer of the upstream.
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: String,
    pub(crate) tag: String,
    pub(crate) what: String,
}

/// A reorg that ordgate has seen.
struct Seen {
    nth: u64,
    tip: usize,
    from: u32,
    /// The version that showed it.
    version: usize,
}

/// The last answer that was delivered for a page.
struct Good {
    thing: Thing,
    epoch: (u32, String),
}

/// Answers about one token, one after the other, that were the same.
struct Check {
    /// When the first came, and when the last was asked for.
    since: Time,
    sent: Time,
}

type Place = (Subject, usize, usize, Option<String>);

pub(crate) struct Judge {
    pub(crate) tally: Tally,
    weather: Weather,
    asked: Vec<Asked>,
    sent: Vec<Sent>,
    purges: Vec<(Purge, u64)>,
    confirmed: [Option<Time>; 2],
    /// The highest height that ordgate was told of and has not been told to be
    /// undone.
    peak: [u32; 2],
    seen: Vec<Seen>,
    /// Since when ordgate takes a hash for that of a height.
    since: [HashMap<u32, (Hash, u64)>; 2],
    /// What the status said last, and when.
    said: [Option<(u32, String, u64)>; 2],
    /// When the last request was sent whose answer named a block.
    named: HashMap<BlockId, u64>,
    good: HashMap<Place, Good>,
    bodies: HashMap<HeaderValue, Bytes>,
    /// When ordgate saw a new tip of the tokens' indexer, or a token that had
    /// changed without one.
    restarts: Vec<Time>,
    epoch: u64,
    /// The last answer about each token, and when the first of those came that
    /// were the same.
    tokens: HashMap<Subject, (Time, Thing)>,
    checks: Vec<Check>,
}

impl Judge {
    pub(crate) fn new(weather: Weather) -> Self {
        Self {
            tally: Tally::default(),
            weather,
            asked: Vec::new(),
            sent: Vec::new(),
            purges: Vec::new(),
            confirmed: [None, None],
            peak: [0, 0],
            seen: Vec::new(),
            since: [HashMap::new(), HashMap::new()],
            said: [None, None],
            named: HashMap::new(),
            good: HashMap::new(),
            bodies: HashMap::new(),
            restarts: Vec::new(),
            epoch: 0,
            tokens: HashMap::new(),
            checks: Vec::new(),
        }
    }

    pub(crate) fn client(&self, client: usize) -> &Sent {
        &self.sent[client]
    }

    pub(crate) fn asked_of(&self, id: usize) -> &Asked {
        &self.asked[id]
    }

    /// Some request that has had no answer.
    pub(crate) fn unanswered(&self) -> Option<String> {
        let mut open = self.sent.iter().enumerate().filter(|(_, sent)| !sent.over);
        open.next()
            .map(|(client, sent)| format!("client {client}: {}", sent.text))
    }

    pub(crate) fn sent(&mut self, mut sent: Sent) {
        let tip = sent.target.tip();
        sent.confirmed = self.confirmed[tip];
        sent.peak = self.peak[tip];
        self.sent.push(sent);
    }

    /// A client goes away; answers whether it was still there.
    pub(crate) fn leaves(&mut self, client: usize) -> bool {
        !std::mem::replace(&mut self.sent[client].over, true)
    }

    pub(crate) fn purged(&mut self, what: Purge, nth: u64) {
        self.purges.push((what, nth));
        // What a perfect cache may still use after a purge is left open.
        self.good.clear();
    }

    /// The upstream is asked.
    #[expect(clippy::too_many_arguments, reason = "all of it is of one event")]
    pub(crate) fn asked(
        &mut self,
        world: &World,
        id: usize,
        text: String,
        target: Target,
        priority: Priority,
        nth: u64,
        now: Time,
    ) -> Result<(), String> {
        let is_probe = priority == Priority::Probe;
        assert_eq!(is_probe, target.is_status());
        if is_probe {
            self.tally.probes += 1;
        } else {
            let twice = self
                .asked
                .iter()
                .position(|other| !other.over && other.text == text);
            if let Some(other) = twice {
                return Err(format!(
                    "upstream {id} and {other} are the same, at one time"
                ));
            }
            self.tally.asked += 1;
            if let Some(why) = self.waste(world, &target) {
                *self.tally.wasted.entry(why).or_default() += 1;
            }
        }
        self.asked.push(Asked {
            text,
            target,
            sent: now,
            nth,
            tag: 0,
            body: 0,
            looked_up: 0,
            thing: None,
            delivered: None,
            over: false,
            shows: None,
        });
        Ok(())
    }

    /// Why a request is made that a perfect cache would not make, if it is one.
    fn waste(&self, world: &World, target: &Target) -> Option<&'static str> {
        let tip = target.tip();
        let now = world.now(tip);
        let thing = world.thing(target, now);
        let good = self.good.get(&place(world, thing, target));
        let good = good.filter(|good| good.thing == thing);
        let derived = || {
            let Thing::List(block, Some(tx)) = thing else {
                return false;
            };
            let block_thing = Thing::List(block, None);
            let block = &world.blocks[block];
            let run = block.txs.iter().find(|run| run.0 == tx).unwrap();
            let size = self.weather.setup.window;
            let mut windows = run.1 / size..=(run.2 - 1) / size;
            windows.all(|window| {
                let place = (Subject::Height(block.height), size, window * size, None);
                let good = self.good.get(&place);
                good.is_some_and(|good| good.thing == block_thing)
            })
        };
        let Some(good) = good else {
            return derived().then_some("a transaction whose block's windows were there");
        };
        let epoch = (now.height, now.tag.clone());
        Some(match (thing, good.epoch == epoch) {
            (Thing::Nothing | Thing::NotFound, _) => "absent: it might have appeared",
            (Thing::Refused, _) => "absent: it might not be refused any more",
            (Thing::Token(..), true) => "live: it might have changed ahead of the tip",
            (Thing::Token(..), false) => "live: a new tip that has not changed it",
            (Thing::List(block, _), same) => {
                let depth = now.height.saturating_sub(world.blocks[block].height);
                match (depth >= FINAL_DEPTH, same) {
                    (true, _) => "final: forgotten, or not known to be deep when it came",
                    (false, true) => "recent: in the same epoch",
                    (false, false) => "recent: a new tip, and no proof that it still stands",
                }
            }
        })
    }

    pub(crate) fn tagged(&mut self, id: usize, version: usize) {
        self.asked[id].tag = version;
    }

    pub(crate) fn looked_up(&mut self, world: &World, id: usize, version: usize, now: Time) {
        let asked = &mut self.asked[id];
        let target = &asked.target;
        asked.body = version;
        asked.looked_up = now;
        asked.thing = Some(world.thing(target, &world.history[target.tip()][version]));
    }

    pub(crate) fn failed(&mut self, id: usize) {
        self.asked[id].over = true;
    }

    /// What the upstream answers now.
    pub(crate) fn delivered(
        &mut self,
        world: &World,
        id: usize,
        nth: u64,
        now: Time,
        hash_at: impl Fn(usize, u32) -> Option<Hash>,
    ) -> Told {
        let asked = &mut self.asked[id];
        asked.delivered = Some(now);
        asked.over = true;
        let tip = asked.target.tip();
        let tag = world.history[tip][asked.tag].tag.clone();
        let version = &world.history[tip][asked.body];
        let purged = self.purges.iter().any(|(_, purge)| *purge > asked.nth);
        if asked.target.is_status() {
            let height = version.height;
            if let Some((before, tag_before, said)) = &self.said[tip]
                && *said < asked.nth
            {
                let replaced = *before == height && tip == RUNES && *tag_before != tag;
                asked.shows = match height < *before {
                    true => Some(height + 1),
                    false => replaced.then_some(height),
                };
            }
            self.said[tip] = Some((height, tag.clone(), nth));
            let body =
                format!(r#"{{"server_version":"x","status":"ready","block_height":{height}}}"#);
            return Told {
                status: 200,
                content_type: JSON.to_owned(),
                what: format!("tip {height}"),
                body,
                tag,
            };
        }
        let thing = asked.thing.unwrap();
        let (status, mut body) = world.render(thing, &asked.target);
        let what = brief(world, thing);
        if let Some(block) = named(&body, thing) {
            let latest = self.named.entry(block).or_default();
            *latest = asked.nth.max(*latest);
            let block = &world.blocks[block];
            let known = hash_at(tip, block.height);
            let other = known.is_some_and(|known| Some(known) != hash(&block.hash));
            let since = self.since[tip].get(&block.height);
            if tip == RUNES
                && other
                && !purged
                && since.is_some_and(|(_, since)| *since < asked.nth)
            {
                asked.shows = Some(block.height);
            }
        }
        let good = Good {
            thing,
            epoch: (version.height, version.tag.clone()),
        };
        if !purged {
            self.good.insert(place(world, thing, &asked.target), good);
        }
        let (mark, content_type) = match thing {
            Thing::Token(..) => (ELSEWHERE, format!("{JSON}; mark={id}")),
            Thing::List(..) | Thing::Nothing | Thing::NotFound | Thing::Refused => {
                (id, JSON.to_owned())
            }
        };
        write_mark(&mut body, mark);
        self.compare(id);
        Told {
            status,
            content_type,
            body,
            tag,
            what,
        }
    }

    /// An answer has been delivered, and ordgate has made of it what it makes.
    /// Answers with the reorg that it must have seen by that, if any.
    pub(crate) fn learned(
        &mut self,
        world: &World,
        id: usize,
        nth: u64,
        epoch: u64,
        hash_at: impl Fn(usize, u32) -> Option<Hash>,
        height_of: impl Fn(usize) -> Option<u32>,
    ) -> Option<String> {
        let asked = &self.asked[id];
        // The first tip that is known is no new one.
        if epoch != std::mem::replace(&mut self.epoch, epoch) && epoch > 1 {
            self.restarts.push(asked.delivered.unwrap());
        }
        let tip = asked.target.tip();
        let version = &world.history[tip][asked.body];
        let mut shows = asked.shows;
        if asked.target.is_status() {
            self.confirmed[tip] = Some(asked.sent);
            // It may be taken for doubtful, and be asked for again.
            match height_of(tip) == Some(version.height) {
                true => self.peak[tip] = version.height,
                false => {
                    self.peak[tip] = self.peak[tip].max(version.height);
                    shows = None;
                }
            }
        } else if let Some(block) = asked.thing.and_then(Thing::block) {
            self.peak[tip] = self.peak[tip].max(world.blocks[block].height);
        }
        // What ordgate takes for the hash of each height by now.
        let heights: Vec<_> = self.since[tip].keys().copied().collect();
        let named = asked.thing.and_then(Thing::block);
        let named = named.map(|block| world.blocks[block].height);
        for height in heights.into_iter().chain(named).chain([version.height]) {
            match (hash_at(tip, height), self.since[tip].get(&height)) {
                (Some(hash), Some((before, _))) if hash == *before => {}
                (Some(hash), _) => drop(self.since[tip].insert(height, (hash, nth))),
                (None, _) => drop(self.since[tip].remove(&height)),
            }
        }
        let height = shows?;
        self.tally.reorgs += 1;
        let from = height.saturating_sub(2 * FINAL_DEPTH);
        self.seen.push(Seen {
            nth,
            tip,
            from,
            version: asked.body,
        });
        Some(format!("upstream {id} shows a reorg at {height}"))
    }

    /// What an answer says of how long others about tokens may be used.
    fn compare(&mut self, id: usize) {
        let asked = &self.asked[id];
        let now = asked.delivered.unwrap();
        let (Subject::Token(_), Some(thing)) = (&asked.target.subject, asked.thing) else {
            return;
        };
        let subject = asked.target.subject.clone();
        let sent = asked.sent;
        let stable = self.stable(now);
        let mut since = now;
        match self.tokens.get(&subject) {
            Some((first, before)) if *first >= stable && *before == thing => {
                since = *first;
                self.checks.push(Check { since, sent });
            }
            // After a purge, ordgate has nothing to compare with.
            Some((first, Thing::Token(..)))
                if *first >= stable && self.weather.purge_every == 0 =>
            {
                self.restarts.push(now);
            }
            Some(_) | None => {}
        }
        self.tokens.insert(subject, (since, thing));
    }

    /// The request that brought a token's answer; of one that says only that
    /// nothing has changed, the last that may have.
    fn source(&self, world: &World, at: &Sent, reply: &Reply, text: &str) -> usize {
        if let Some((_, mark)) = reply.content_type.split_once("mark=") {
            return mark.parse().unwrap();
        }
        let mut asked = self.asked.iter();
        let brought = |asked: &&Asked| {
            let thing = asked.thing.filter(|_| asked.delivered.is_some());
            let is_it = |thing| world.render(thing, &asked.target).1 == text;
            asked.target == at.target && thing.is_some_and(is_it)
        };
        asked.rposition(|asked| brought(&asked)).unwrap()
    }

    /// From when on answers about tokens came late enough after a new tip, as
    /// of a time.
    fn stable(&self, at: Time) -> Time {
        let mut restarts = self.restarts.iter().rev();
        let last = restarts.find(|restart| **restart <= at);
        last.map_or(0, |last| last + self.weather.setup.live_ttl)
    }

    /// Whether checks show at a time that tokens had not changed for so long.
    fn is_checked(&self, from: &Asked, at: Time) -> bool {
        let received = from.delivered.unwrap();
        let stable = self.stable(at);
        if received < stable {
            return false;
        }
        let mut known = received;
        let longer = |known: Time| {
            let checks = self.checks.iter();
            let meets = |check: &&Check| stable <= check.since && check.since <= known;
            let ends = checks.filter(meets).map(|check| check.sent);
            ends.filter(|end| *end > known).max()
        };
        while let Some(end) = longer(known) {
            known = end;
        }
        at <= known + self.weather.setup.live_ttl
    }

    /// Whether a final answer about a block should have gone by a time: since
    /// a reorg undid it, a status has told of another tip, however deep below
    /// that the block lay.
    fn is_undone(&self, world: &World, tip: usize, block: BlockId, at: Time) -> bool {
        let history = &world.history[tip];
        let has = |version: &crate::world::Version| version.data.contains(&block);
        let Some(last) = history.iter().rposition(has) else {
            return false;
        };
        let Some(gone) = history.get(last + 1) else {
            return false;
        };
        let before = (history[last].height, &*history[last].tag);
        let mut told = self.asked.iter().filter(|asked| {
            let of_tip = asked.target.subject == Subject::Status(tip);
            let told = |asked: &Asked| (history[asked.body].height, &*history[asked.tag].tag);
            of_tip && asked.sent >= gone.begin && told(asked) != before
        });
        told.any(|asked| asked.delivered.is_some_and(|told| told + LOOKS <= at))
    }

    /// Judges an answer.
    pub(crate) fn judge(
        &mut self,
        world: &World,
        client: usize,
        reply: Reply,
    ) -> Result<(), String> {
        let at = &mut self.sent[client];
        at.over = true;
        self.tally.answers += 1;
        let at = &self.sent[client];
        let fault = |why: String| Err(format!("client {client}, {}: {why}", at.text));
        let body = match reply.status.as_u16() {
            200 | 400 | 404 => reply.body.clone(),
            304 => {
                self.tally.unchanged += 1;
                let tag = reply.etag.as_ref().unwrap();
                if at.had.as_ref() != Some(tag) {
                    return fault("304 for a tag that it did not send".to_owned());
                }
                self.bodies[tag].clone()
            }
            502..=504 if self.weather.fails() => {
                self.tally.refused += 1;
                return Ok(());
            }
            // Whatever came was overtaken by reorgs or purges.
            503 if reply.says("proxy_internal_error") => {
                self.tally.unsettled += 1;
                return Ok(());
            }
            status => return fault(format!("status {status} though nothing has failed")),
        };
        if let Some(tag) = &reply.etag {
            let held = self
                .bodies
                .entry(tag.clone())
                .or_insert_with(|| body.clone());
            if *held != body {
                return fault("one tag for two bodies".to_owned());
            }
        }
        let whole = std::str::from_utf8(&body).unwrap();
        let (text, from) = read_mark(whole);
        let from = match from {
            ELSEWHERE => self.source(world, at, &reply, text),
            from => from,
        };
        let from = &self.asked[from];
        let tip = at.target.tip();
        self.tally.hits += u64::from(reply.says("; hit"));

        // When the upstream would have said just that.
        let history = &world.history[tip];
        let mut times = Vec::new();
        let mut last: Option<(Thing, bool)> = None;
        for (index, version) in history.iter().enumerate() {
            let thing = world.thing(&at.target, version);
            let same = match last {
                Some((before, same)) if before == thing => same,
                _ => world.render(thing, &at.target).1 == text,
            };
            last = Some((thing, same));
            if same {
                times.push((index, thing));
            }
        }
        if times.is_empty() {
            return fault(format!("this was never true: {text}"));
        }
        // A refusal is one for every page of its list, and costs no second
        // request for the page itself.
        let refused = times.iter().any(|(_, thing)| *thing == Thing::Refused);
        let is_refusal = reply.status == StatusCode::BAD_REQUEST;
        if is_refusal && !refused || refused && reply.status == StatusCode::OK {
            return fault(format!("status {}: {text}", reply.status));
        }
        if refused && from.target.limit != self.weather.setup.window {
            return fault(format!("the page is asked for as well: {}", from.text));
        }

        // A token may change without its tip, so nothing but time and checks
        // bounds how long it is used.
        if let Some(Thing::Token(..)) = from.thing
            && reply.says("; hit")
            && !reply.says("ttl=-")
        {
            let age = at.at - from.delivered.unwrap();
            let times = match self.is_checked(from, at.at) {
                true => MOST_CHECKED,
                false => 1,
            };
            self.tally.checked += u64::from(age > self.weather.setup.live_ttl);
            if age > times * self.weather.setup.live_ttl {
                return fault(format!("{age} ms old, and not checked since: {text}"));
            }
        }

        let immutable = reply.cache_control.contains("immutable");
        // Half a second past its freshness is told as `ttl=0`.
        let barely =
            self.weather.setup.while_revalidate > 0 && reply.cache_status.ends_with("ttl=0");
        let is_stale = reply.says("ttl=-") || reply.says("stale-if-error") || barely;
        self.tally.stale += u64::from(is_stale);
        self.tally.immutable += u64::from(immutable);
        let oldest = self.oldest(at, from, &reply, immutable, is_stale);
        let until = |index: usize| {
            // What the upstream's status does not tell cannot be known.
            let said = |version: &crate::world::Version| (version.height, version.tag.clone());
            let own = said(&history[index]);
            let mut after = history[index + 1..].iter();
            after
                .find(|later| said(later) != own)
                .map(|later| later.begin)
        };
        let recent = times
            .iter()
            .any(|(index, _)| until(*index).is_none_or(|end| end >= oldest));
        if !recent {
            let ends = times.iter().filter_map(|(index, _)| until(*index)).max();
            return fault(format!(
                "too old: true until {ends:?}, asked at {}, must be true at {oldest} or later: {} {} {text}",
                at.at, reply.cache_status, reply.cache_control
            ));
        }

        let blocks: Vec<_> = times
            .iter()
            .filter_map(|(_, thing)| named(text, *thing))
            .collect();
        for seen in self
            .seen
            .iter()
            .filter(|seen| seen.tip == tip && seen.nth < at.nth)
        {
            let stands = &history[seen.version].data;
            let stood = |block: &BlockId| {
                let mut before = history[..seen.version].iter();
                before.any(|version| version.data.contains(block))
            };
            // A page that is the same on several branches names but one block.
            let Some(block) = blocks.first() else {
                continue;
            };
            let again = self.named.get(block).is_some_and(|named| *named > seen.nth);
            if world.blocks[*block].height >= seen.from
                && !stands.contains(block)
                && stood(block)
                && !again
            {
                return fault(format!(
                    "it names an orphan, {}: {} {text}",
                    brief(world, Thing::List(*block, None)),
                    reply.cache_status
                ));
            }
        }

        if immutable
            && self.weather.deep
            && let Some(block) = blocks.first()
            && self.is_undone(world, tip, *block, at.at)
        {
            return fault(format!(
                "final, and it names an orphan, {}: {} {text}",
                brief(world, Thing::List(*block, None)),
                reply.cache_status
            ));
        }

        if immutable {
            let peak = at.peak.max(self.peak[tip]);
            let height = |thing: &Thing| match (thing.block(), &at.target.subject) {
                (Some(block), _) => Some(world.blocks[block].height),
                (None, Subject::Height(height)) => Some(*height),
                // What is not there where it stood once is as settled as what
                // is there instead.
                (None, Subject::Hash(hash)) => {
                    let mut blocks = world.blocks.iter();
                    blocks
                        .find(|block| block.hash == *hash)
                        .map(|block| block.height)
                }
                (None, _) => None,
            };
            let deep = |height: u32| height + FINAL_DEPTH <= peak;
            if !times
                .iter()
                .any(|(_, thing)| height(thing).is_some_and(deep))
            {
                return fault(format!("immutable, and not deep below {peak}: {text}"));
            }
        } else if let Some(most) = self.most_age(at, text)
            && reply.max_age().is_some_and(|age| age * 1000 > most)
        {
            return fault(format!("{} beyond {most} ms: {text}", reply.cache_control));
        }

        for (purge, _) in self
            .purges
            .iter()
            .filter(|(_, purge)| from.nth < *purge && *purge < at.nth)
        {
            let height = blocks.first().map(|block| world.blocks[*block].height);
            // Of a page that was cut from several answers, this is the first.
            let source = world.render(from.thing.unwrap(), &from.target).1;
            if covers(purge, &at.target, &from.target, [text, &source], height) {
                return fault(format!(
                    "{purge:?} was before, but it is from upstream {}: {} {text}",
                    from.text, reply.cache_status
                ));
            }
        }
        Ok(())
    }

    /// At which time, or later, an answer must have been true.
    fn oldest(
        &self,
        at: &Sent,
        from: &Asked,
        reply: &Reply,
        immutable: bool,
        is_stale: bool,
    ) -> Time {
        let setup = &self.weather.setup;
        if immutable {
            return 0;
        }
        let patience = 2 * setup.every;
        let flight = from.delivered.unwrap() - from.looked_up;
        let by_time = at.at.saturating_sub(setup.recent_ttl + flight);
        if is_stale {
            let spare = match reply.says("stale-if-error") {
                true => setup.if_error,
                false => setup.while_revalidate,
            };
            let bound = patience.max(setup.recent_ttl) + flight;
            return at.at.saturating_sub(spare + 1_000 + bound);
        }
        let known = at.confirmed.filter(|sent| at.at - sent <= patience);
        let oldest = known.unwrap_or(by_time);
        match at.target.subject {
            // What changes ahead of the tip, or without its moving, is bounded
            // in time besides.
            Subject::Token(_) => oldest.min(at.at.saturating_sub(setup.live_ttl + flight)),
            Subject::Status(_) | Subject::Height(_) | Subject::Hash(_) | Subject::Tx(_) => oldest,
        }
    }

    /// For how long an answer that is not final may be kept, at the most.
    fn most_age(&self, at: &Sent, text: &str) -> Option<Time> {
        let setup = &self.weather.setup;
        let absent = !text.contains(r#""total":0,"#) || at.target.offset > 0;
        let not_found = text.contains(r#""error""#);
        match !absent || not_found {
            true => Some(setup.absent_ttl),
            false => Some(setup.every.max(setup.recent_ttl)),
        }
    }
}

/// The block that a body names, being about a thing.
fn named(body: &str, thing: Thing) -> Option<BlockId> {
    match body.contains(r#""results":[]"#) {
        true => None,
        false => thing.block(),
    }
}

/// Under which name a perfect cache would hold an answer.
fn place(world: &World, thing: Thing, target: &Target) -> Place {
    let subject = match (thing, &target.subject) {
        (Thing::List(block, None), _) => Subject::Height(world.blocks[block].height),
        (_, subject) => subject.clone(),
    };
    // A refusal is the same for every page.
    let (limit, offset) = match thing == Thing::Refused {
        true => (0, 0),
        false => (target.limit, target.offset),
    };
    (subject, limit, offset, target.operation.clone())
}

/// Whether a purge means an answer that was made from the upstream's to another
/// target; with the texts of both.
fn covers(
    purge: &Purge,
    target: &Target,
    from: &Target,
    texts: [&str; 2],
    named: Option<u32>,
) -> bool {
    let route = |target: &Target| match target.subject {
        Subject::Token(_) => 0,
        Subject::Tx(_) => 1,
        Subject::Height(_) | Subject::Hash(_) | Subject::Status(_) => 2,
    };
    let of_route = |purged: u16| purged == route(target) && purged == route(from);
    let route = route(target);
    match purge {
        Purge::All => true,
        // What is cut from another route's answers is not stored by this one.
        Purge::Route(purged) => of_route(*purged),
        Purge::Path { route: own, path } => {
            let end = match &target.subject {
                Subject::Token(ticker) => ticker.clone(),
                Subject::Tx(id) | Subject::Hash(id) => id.clone(),
                Subject::Height(height) => height.to_string(),
                Subject::Status(_) => return false,
            };
            // What is empty at a height names no block that is asked for by hash.
            let names = from.subject == target.subject || texts[1].contains(&end);
            *own == route && names && path.split('/').any(|part| part == end)
        }
        Purge::Heights { from, to, .. } => {
            let asked = match target.subject {
                Subject::Height(height) => Some(height),
                Subject::Status(_) | Subject::Hash(_) | Subject::Tx(_) | Subject::Token(_) => None,
            };
            named
                .or(asked)
                .is_some_and(|height| (*from..=*to).contains(&height))
        }
        // These the operator's side alone makes.
        Purge::Target { .. } | Purge::Segment { .. } => false,
        Purge::Text(purged) => {
            let asked = match &target.subject {
                Subject::Tx(id) | Subject::Hash(id) => *id == **purged,
                Subject::Status(_) | Subject::Height(_) | Subject::Token(_) => false,
            };
            // As above.
            let asked = asked && from.subject == target.subject;
            asked || texts.iter().all(|text| text.contains(&**purged))
        }
    }
}

/// The API's content type.
const JSON: &str = "application/json; charset=utf-8";

/// The mark of a body whose content type says which request brought it.
const ELSEWHERE: usize = (1 << DIGITS) - 1;

/// Digits of a mark.
const DIGITS: usize = 14;

fn write_mark(body: &mut String, id: usize) {
    for digit in 0..DIGITS {
        body.push(if id >> digit & 1 == 1 { '\t' } else { ' ' });
    }
}

fn read_mark(body: &str) -> (&str, usize) {
    let (text, mark) = body.split_at(body.len() - DIGITS);
    let digits = mark.chars().enumerate();
    let id = digits
        .map(|(at, digit)| usize::from(digit == '\t') << at)
        .sum();
    (text, id)
}
