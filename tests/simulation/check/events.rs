//! What happened: requests, answers, purges.

use ordgate::cache::purge::Purge;

use super::mark::{content_type, write_mark};
use super::records::{Asked, Sent, UpstreamAnswer};
use super::{FINAL_DEPTH, Good, Judge, place};
use crate::play::brief;
use crate::world::{Subject, Target, Thing, Time, World};

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
    pub(crate) fn asked(
        &mut self,
        world: &World,
        id: usize,
        asked: Asked,
        is_probe: bool,
    ) -> Result<(), String> {
        assert_eq!(is_probe, asked.target.is_status());
        if is_probe {
            self.tally.probes += 1;
        } else {
            let twice = self
                .asked
                .iter()
                .position(|other| !other.over && other.text == asked.text);
            if let Some(other) = twice {
                return Err(format!(
                    "upstream {id} and {other} are the same, at one time"
                ));
            }
            self.tally.asked += 1;
            if let Some(why) = self.waste(world, &asked.target) {
                *self.tally.wasted.entry(why).or_default() += 1;
            }
        }
        self.asked.push(asked);
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
    pub(crate) fn delivered(&mut self, world: &World, id: usize, now: Time) -> UpstreamAnswer {
        let asked = &mut self.asked[id];
        asked.delivered = Some(now);
        asked.over = true;
        let tip = asked.target.tip();
        let tag = world.history[tip][asked.tag].tag.clone();
        let version = &world.history[tip][asked.body];
        let purged = self.purges.iter().any(|(_, purge)| *purge > asked.nth);
        if asked.target.is_status() {
            let height = version.height;
            self.statuses[tip].push((asked.sent, now));
            let body =
                format!(r#"{{"server_version":"x","status":"ready","block_height":{height}}}"#);
            return UpstreamAnswer {
                status: 200,
                content_type: content_type(id),
                what: format!("tip {height}"),
                body,
                tag,
            };
        }
        let thing = asked.thing.unwrap();
        let (status, body) = world.render(thing, &asked.target);
        let what = brief(world, thing);
        let good = Good {
            thing,
            epoch: (version.height, version.tag.clone()),
        };
        if !purged {
            self.good.insert(place(world, thing, &asked.target), good);
        }
        UpstreamAnswer {
            status,
            content_type: content_type(id),
            body: write_mark(&body, id),
            tag,
            what,
        }
    }

    /// An answer has been delivered, and ordgate has made of it what it makes.
    pub(crate) fn learned(&mut self, world: &World, id: usize) {
        let asked = &self.asked[id];
        let tip = asked.target.tip();
        let height = world.history[tip][asked.body].height;
        if asked.target.is_status() {
            self.confirmed[tip] = Some(asked.sent);
            // What is final stays so when the tip goes back.
            self.peak[tip] = self.peak[tip].max(height);
        } else if let Some(block) = asked.thing.and_then(Thing::block) {
            self.peak[tip] = self.peak[tip].max(world.blocks[block].height);
        }
    }
}
