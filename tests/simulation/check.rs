//! What must hold for every answer, whatever happened before it.
//!
//! Each upstream body ends in the number of its request, encoded in blanks, which
//! JSON ignores. Pages that are cut from a body keep it, so an answer shows which
//! requests it is from and how old it is. ordgate compares the bodies of tokens,
//! so their number is in the content type instead.

mod bounds;
mod events;
mod mark;
mod records;

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use mark::{ELSEWHERE, read_mark};
use ordgate::cache::purge::Purge;
use ordgate::pages::Hash;
pub(crate) use records::{Asked, Reply, Sent, Told};

use crate::play::brief;
use crate::tally::Tally;
use crate::weather::Weather;
use crate::world::{BlockId, Subject, Target, Thing, Time, World};

const FINAL_DEPTH: u32 = 6;

/// How long the checks of blocks after a new tip may take, where the upstream is
/// fast and never fails.
const LOOKS: Time = 2_000;

/// The longest use of a token's answer, in multiples of `live_ttl`, however many
/// checks of other tokens found no change.
const MOST_CHECKED: Time = 20;

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

/// Successive equal answers about one token.
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
    /// The highest height that ordgate has seen and not seen undone.
    peak: [u32; 2],
    seen: Vec<Seen>,
    /// Since when ordgate has a hash for a height.
    since: [HashMap<u32, (Hash, u64)>; 2],
    /// The last status, and when it came.
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
            // All answers were overtaken by reorgs or purges.
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

        // The times at which the upstream had this answer.
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
