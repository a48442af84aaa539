//! What happened: requests, answers, purges.

use ordgate::cache::purge::Purge;

use super::Judge;
use super::mark::{content_type, write_mark};
use super::records::{Asked, Sent, UpstreamAnswer};
use crate::play::brief;
use crate::world::{Thing, Time, World};

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
    }

    /// The upstream is asked.
    pub(crate) fn asked(&mut self, id: usize, asked: Asked, is_probe: bool) -> Result<(), String> {
        assert_eq!(is_probe, asked.target.is_status());
        if is_probe {
            self.count("probes");
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
            self.count("requests to the upstream");
        }
        self.asked.push(asked);
        Ok(())
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
