//! What happened: requests, answers, purges.

use ordgate::cache::purge::Purge;
use ordgate::pages::{Hash, hash};
use ordgate::upstream::Priority;

use super::mark::{ELSEWHERE, JSON, write_mark};
use super::records::{Asked, Sent, UpstreamAnswer};
use super::{Check, FINAL_DEPTH, Good, Judge, Seen, named, place};
use crate::play::brief;
use crate::world::{RUNES, Subject, Target, Thing, Time, World};

impl Judge {
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
    pub(super) fn waste(&self, world: &World, target: &Target) -> Option<&'static str> {
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
    ) -> UpstreamAnswer {
        let asked = &mut self.asked[id];
        asked.delivered = Some(now);
        asked.over = true;
        let tip = asked.target.tip();
        let tag = world.history[tip][asked.tag].tag.clone();
        let version = &world.history[tip][asked.body];
        let purged = self.purges.iter().any(|(_, purge)| *purge > asked.nth);
        if asked.target.is_status() {
            let height = version.height;
            if let Some((before, tag_before, nth_before)) = &self.statuses[tip]
                && *nth_before < asked.nth
            {
                let replaced = *before == height && tip == RUNES && *tag_before != tag;
                asked.shows = match height < *before {
                    true => Some(height + 1),
                    false => replaced.then_some(height),
                };
            }
            self.statuses[tip] = Some((height, tag.clone(), nth));
            let body =
                format!(r#"{{"server_version":"x","status":"ready","block_height":{height}}}"#);
            return UpstreamAnswer {
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
        UpstreamAnswer {
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
    pub(super) fn compare(&mut self, id: usize) {
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
}
