//! What must hold for every answer, whatever happened before it.
//!
//! Each upstream answer bears the number of its request, and pages that are cut from it keep
//! that. So an answer shows which requests it is from and how old it is.

mod answer;
mod bounds;
mod events;
mod mark;
mod records;

use std::collections::{BTreeMap, HashMap};

use answer::{Judged, times};
use bytes::Bytes;
use http::HeaderValue;
use mark::read_mark;
use ordgate::cache::purge::Purge;
use ordgate::pages::Hash;
pub(crate) use records::{Asked, Reply, Sent, UpstreamAnswer};

use crate::weather::Weather;
use crate::world::{BlockId, REST, Subject, TYPED, Target, Thing, Time, World};

/// What is counted, of a play or of many.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

const FINAL_DEPTH: u32 = 6;

pub(crate) struct Judge {
    pub(crate) tally: Tally,
    weather: Weather,
    asked: Vec<Asked>,
    sent: Vec<Sent>,
    purges: Vec<(Purge, u64)>,
    confirmed: [Option<Time>; 2],
    /// The highest height that ordgate has seen.
    peak: [u32; 2],
    /// When each status was asked for, and when it came.
    statuses: [Vec<(Time, Time)>; 2],
    bodies: HashMap<HeaderValue, Bytes>,
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
            statuses: [Vec::new(), Vec::new()],
            bodies: HashMap::new(),
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Judges an answer. `known` is which block ordgate takes to be at a height.
    pub(crate) fn judge(
        &mut self,
        world: &World,
        client: usize,
        reply: Reply,
        known: impl Fn(u32) -> Option<Hash>,
    ) -> Result<(), String> {
        self.sent[client].over = true;
        self.count("answers");
        let text = self.sent[client].text.clone();
        let fault = |why: String| format!("client {client}, {text}: {why}");
        match self.body(client, &reply).map_err(fault)? {
            Some(body) => {
                let judged = self.judge_body(world, client, (&reply, &body), known);
                judged.map_err(fault)
            }
            None => Ok(()),
        }
    }

    /// The body of an answer, that of the stored response for a 304; `None` for a
    /// failure that may happen.
    fn body(&mut self, client: usize, reply: &Reply) -> Result<Option<Bytes>, String> {
        let body = match reply.status.as_u16() {
            200 | 400 | 404 => reply.body.clone(),
            304 => {
                self.count("unchanged");
                let tag = reply.etag.as_ref().unwrap();
                if self.sent[client].had.as_ref() != Some(tag) {
                    return Err("304 for a tag that it did not send".to_owned());
                }
                self.bodies[tag].clone()
            }
            502..=504 if self.weather.fails() => {
                self.count("refused");
                return Ok(None);
            }
            // All answers were overtaken by reorgs or purges.
            503 if reply.says("proxy_internal_error") => {
                self.count("overtaken");
                return Ok(None);
            }
            status => return Err(format!("status {status} though nothing has failed")),
        };
        if let Some(tag) = &reply.etag {
            let first = self
                .bodies
                .entry(tag.clone())
                .or_insert_with(|| body.clone());
            if *first != body {
                return Err("one tag for two bodies".to_owned());
            }
        }
        Ok(Some(body))
    }

    fn judge_body(
        &mut self,
        world: &World,
        client: usize,
        (reply, body): (&Reply, &Bytes),
        known: impl Fn(u32) -> Option<Hash>,
    ) -> Result<(), String> {
        let at = &self.sent[client];
        let body = std::str::from_utf8(body).unwrap();
        let (text, from) = read_mark(body, &reply.content_type);
        let text = &*text;
        let times = times(world, at, text);
        let from = from.unwrap_or_else(|| self.source(at, &times));
        // Half a second past its freshness, `ttl` is 0.
        let barely =
            self.weather.setup.while_revalidate > 0 && reply.cache_status.ends_with("ttl=0");
        let answer = Judged {
            world,
            at,
            from: &self.asked[from],
            reply,
            text,
            times,
            is_immutable: reply.cache_control.contains("immutable"),
            is_stale: reply.says("ttl=-") || reply.says("stale-if-error") || barely,
        };
        let counted = [
            ("from memory", reply.says("; hit")),
            ("stale", answer.is_stale),
            ("immutable", answer.is_immutable),
        ];
        self.check(&answer, known)?;
        for (what, _) in counted.into_iter().filter(|(_, is_so)| *is_so) {
            self.count(what);
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
        Subject::Token(_) => TYPED[0],
        Subject::Tx(_) => TYPED[1],
        Subject::Height(_) | Subject::Hash(_) | Subject::Status(_) => TYPED[2],
        Subject::Rest(tip, _) => REST[tip],
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
                Subject::Height(height) | Subject::Rest(_, height) => height.to_string(),
                Subject::Status(_) => return false,
            };
            // What is empty at a height names no block that is asked for by hash.
            let names = from.subject == target.subject || texts[1].contains(&end);
            *own == route && names && path.split('/').any(|part| part == end)
        }
        Purge::Heights { from, to, .. } => {
            let asked = match target.subject {
                Subject::Height(height) => Some(height),
                Subject::Status(_)
                | Subject::Hash(_)
                | Subject::Tx(_)
                | Subject::Token(_)
                | Subject::Rest(..) => None,
            };
            named
                .or(asked)
                .is_some_and(|height| (*from..=*to).contains(&height))
        }
        // These the operator's side alone makes.
        Purge::Target { .. } => false,
        Purge::Text(purged) => {
            let asked = match &target.subject {
                Subject::Tx(id) | Subject::Hash(id) => *id == **purged,
                Subject::Status(_) | Subject::Height(_) | Subject::Token(_) | Subject::Rest(..) => {
                    false
                }
            };
            // As above.
            let asked = asked && from.subject == target.subject;
            asked || texts.iter().all(|text| text.contains(&**purged))
        }
    }
}
