//! How old an answer may be, and what it may tell of.

use super::records::{Asked, Reply, Sent};
use super::{Check, Judge, LOOKS};
use crate::world::{BlockId, Subject, Time, World};

impl Judge {
    /// The request that brought a token's answer; of one that says only that
    /// nothing has changed, the last that may have.
    pub(super) fn source(&self, world: &World, at: &Sent, reply: &Reply, text: &str) -> usize {
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
    pub(super) fn stable(&self, at: Time) -> Time {
        let mut restarts = self.restarts.iter().rev();
        let last = restarts.find(|restart| **restart <= at);
        last.map_or(0, |last| last + self.weather.setup.live_ttl)
    }

    /// Whether checks show at a time that tokens had not changed for so long.
    pub(super) fn is_checked(&self, from: &Asked, at: Time) -> bool {
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
    pub(super) fn is_undone(&self, world: &World, tip: usize, block: BlockId, at: Time) -> bool {
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

    /// At which time, or later, an answer must have been true.
    pub(super) fn oldest(
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
    pub(super) fn most_age(&self, at: &Sent, text: &str) -> Option<Time> {
        let setup = &self.weather.setup;
        let absent = !text.contains(r#""total":0,"#) || at.target.offset > 0;
        let not_found = text.contains(r#""error""#);
        match !absent || not_found {
            true => Some(setup.absent_ttl),
            false => Some(setup.every.max(setup.recent_ttl)),
        }
    }
}
