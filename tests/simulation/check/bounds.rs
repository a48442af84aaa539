//! How old an answer may be, and what it may tell of.

use super::Judge;
use super::records::{Asked, Reply, Sent};
use crate::play::BEHIND;
use crate::world::{BlockId, Subject, Thing, Time, World};

/// How long what is not final is fresh while no tip is known.
const WITHOUT_TIP: Time = 1_000;
/// How long an empty list or a client error is fresh.
const ABSENT: Time = 1_000;

impl Judge {
    /// Whether an answer about a block should have gone by a time: since a reorg undid it,
    /// a status has told of another tip, however deep below that the block lay, and all
    /// checks that this needs may have been answered.
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
        let height = world.blocks[block].height;
        let mut told = self.asked.iter().filter(|asked| {
            let of_tip = asked.target.subject == Subject::Status(tip);
            let told = |asked: &Asked| (history[asked.body].height, &*history[asked.tag].tag);
            // A tip that is lower for a while says nothing of what is above it.
            of_tip
                && asked.sent >= gone.begin
                && told(asked) != before
                && height <= history[asked.body].height
        });
        let checks = self.weather.setup.every + 16 * self.round_trip();
        told.any(|asked| asked.delivered.is_some_and(|told| told + checks <= at))
    }

    /// The request that brought an answer that says only that nothing has changed: the last
    /// that may have. A page of a transaction may have been cut from its block, which is
    /// another thing: then the last of the same tip.
    pub(super) fn source(&self, at: &Sent, times: &[(usize, Thing)]) -> usize {
        let is_of_tip =
            |asked: &Asked| asked.target.tip() == at.target.tip() && asked.delivered.is_some();
        let brought = |asked: &Asked| {
            let is_it = |thing| times.iter().any(|(_, of)| *of == thing);
            is_of_tip(asked) && asked.thing.is_some_and(is_it)
        };
        let mut asked = self.asked.iter();
        let last = self.asked.iter().rposition(is_of_tip);
        asked.rposition(brought).or(last).unwrap()
    }

    /// How long an answer of the upstream takes, nearly always.
    fn round_trip(&self) -> Time {
        3 * self.weather.latency.iter().sum::<Time>()
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
        let by_time = at.at.saturating_sub(WITHOUT_TIP + flight);
        if is_stale {
            let spare = match reply.says("stale-if-error") {
                true => setup.if_error,
                false => setup.while_revalidate,
            };
            let bound = patience + setup.every + WITHOUT_TIP + flight;
            return at.at.saturating_sub(spare + 1_000 + bound);
        }
        let known = at.confirmed.filter(|sent| at.at - sent <= patience);
        let oldest = match (known, &at.target.subject) {
            (None, _) => by_time,
            (Some(confirmed), Subject::Token(_) | Subject::Rest(..) | Subject::Status(_)) => {
                confirmed
            }
            // After a new tip it is served for one interval before it is checked.
            (Some(_), Subject::Height(_) | Subject::Hash(_) | Subject::Tx(_)) => {
                let mut statuses = self.statuses[at.target.tip()].iter().rev();
                let known = statuses.find(|(_, told)| told + setup.every <= at.at);
                known.map_or(0, |(sent, _)| *sent)
            }
        };
        // What such an endpoint answers is not stored, but passed on.
        match from.is_behind && !reply.says("; hit") {
            true => oldest.saturating_sub(BEHIND + patience),
            false => oldest,
        }
    }

    /// When a token must have been written again, after a tip that has been told.
    pub(super) fn written_by(&self, written: Time) -> Time {
        let setup = &self.weather.setup;
        written + 2 * setup.every + setup.live_ttl + self.round_trip()
    }

    /// For how long an answer that is not final may be kept, at the most.
    pub(super) fn most_age(&self, at: &Sent, text: &str) -> Option<Time> {
        let setup = &self.weather.setup;
        let absent = !text.contains(r#""total":0,"#) || at.target.offset > 0;
        let not_found = text.contains(r#""error""#);
        match !absent || not_found {
            true => Some(ABSENT),
            false => Some((2 * setup.every).max(WITHOUT_TIP)),
        }
    }
}
