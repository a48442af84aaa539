//! The checks of one answer.

use std::ops::Range;

use http::StatusCode;
use ordgate::pages::{Hash, hash};

use super::records::{Asked, Reply, Sent};
use super::{FINAL_DEPTH, Judge, covers, named};
use crate::play::brief;
use crate::world::{BlockId, RUNES, Subject, Thing, Time, Version, World};

/// An answer with a body, and where it is from.
pub(super) struct Judged<'j> {
    pub(super) world: &'j World,
    /// The client's request.
    pub(super) at: &'j Sent,
    /// The upstream request that brought the body.
    pub(super) from: &'j Asked,
    pub(super) reply: &'j Reply,
    pub(super) text: &'j str,
    /// The versions in which the upstream had this answer, and what it was about.
    pub(super) times: Vec<(usize, Thing)>,
    pub(super) is_immutable: bool,
    pub(super) is_stale: bool,
}

/// The versions of its indexer in which a request's answer had this text.
pub(super) fn times(world: &World, at: &Sent, text: &str) -> Vec<(usize, Thing)> {
    let mut times = Vec::new();
    let mut last: Option<(Thing, bool)> = None;
    for (index, version) in world.history[at.target.tip()].iter().enumerate() {
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
    times
}

impl<'j> Judged<'j> {
    fn tip(&self) -> usize {
        self.at.target.tip()
    }

    fn history(&self) -> &'j [Version] {
        &self.world.history[self.tip()]
    }

    /// The first block that it names. A page that is the same on several branches
    /// names one block only.
    fn block(&self) -> Option<BlockId> {
        let mut things = self.times.iter().map(|(_, thing)| *thing);
        things.find_map(|thing| named(self.text, thing))
    }

    /// When the upstream's answer changed that a version had. Changes that its
    /// status does not show cannot be known, and do not count; nor do those to
    /// other versions and back of which no status was `told`.
    fn until(&self, index: usize, told: impl Fn(Range<usize>) -> bool) -> Option<Time> {
        let history = self.history();
        let status = |version: &'j Version| (version.height, &*version.tag);
        let own = status(&history[index]);
        let mut at = index;
        loop {
            at += history[at..]
                .iter()
                .position(|later| status(later) != own)?;
            let back = history[at..].iter().position(|later| status(later) == own);
            match back {
                Some(back) if !told(at..at + back) => at += back,
                _ => return Some(history[at].begin),
            }
        }
    }

    /// The height that it is about.
    fn height(&self, thing: Thing) -> Option<u32> {
        let blocks = &self.world.blocks;
        match (thing.block(), &self.at.target.subject) {
            (Some(block), _) => Some(blocks[block].height),
            (None, Subject::Height(height)) => Some(*height),
            // The absence of an orphan is as final as the block that is in its
            // place.
            (None, Subject::Hash(hash)) => {
                let block = blocks.iter().find(|block| block.hash == *hash);
                block.map(|block| block.height)
            }
            (None, _) => None,
        }
    }

    /// A fault that is about a block.
    fn names_orphan(&self, what: &str, block: BlockId) -> String {
        let block = brief(self.world, Thing::List(block, None));
        format!("{what}, {block}: {} {}", self.reply.cache_status, self.text)
    }
}

impl Judge {
    /// Checks an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(
        &self,
        answer: &Judged<'_>,
        known: impl Fn(u32) -> Option<Hash>,
    ) -> Result<(), String> {
        if answer.times.is_empty() {
            return Err(format!("this was never true: {}", answer.text));
        }
        self.check_refusal(answer)?;
        self.check_token(answer)?;
        self.check_age(answer)?;
        self.check_orphans(answer, known)?;
        self.check_lifetime(answer)?;
        self.check_purges(answer)
    }

    /// A block that the upstream refuses is refused for every page of its list, and
    /// needs no second request for the page itself, unless what was found was purged since.
    fn check_refusal(&self, answer: &Judged<'_>) -> Result<(), String> {
        let mut things = answer.times.iter().map(|(_, thing)| *thing);
        let refused = things.any(|thing| thing == Thing::Refused);
        let status = answer.reply.status;
        let is_refusal = status == StatusCode::BAD_REQUEST;
        if is_refusal && !refused || refused && status == StatusCode::OK {
            return Err(format!("status {status}: {}", answer.text));
        }
        let from = answer.from;
        let is_purged = self.purges.iter().any(|(_, purge)| *purge < from.nth);
        if refused && !is_purged && from.target.limit != self.weather.setup.window {
            let text = &answer.from.text;
            return Err(format!("the page is requested as well: {text}"));
        }
        Ok(())
    }

    /// What was fetched before the indexer had written a tip's tokens is fetched once more.
    fn check_token(&self, answer: &Judged<'_>) -> Result<(), String> {
        let is_token = matches!(answer.from.thing, Some(Thing::Token(..)));
        if !is_token || !answer.reply.says("; hit") || answer.is_stale {
            return Ok(());
        }
        let Some((last, _)) = answer.times.last() else {
            return Ok(());
        };
        let mut later = answer.history()[last + 1..].iter();
        match later.find(|version| version.is_late) {
            Some(late) if self.written_by(late.begin) < answer.at.at => Err(format!(
                "written at {}, and not fetched again: {}",
                late.begin, answer.text
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// It must have been true recently enough.
    fn check_age(&self, answer: &Judged<'_>) -> Result<(), String> {
        let (at, reply) = (answer.at, answer.reply);
        let oldest = self.oldest(at, answer.from, reply, answer.is_immutable, answer.is_stale);
        let told = |versions: Range<usize>| {
            self.asked.iter().any(|asked| {
                let is_of = |version| versions.contains(&version);
                let is_status = asked.target.subject == Subject::Status(answer.tip());
                is_status && asked.delivered.is_some() && (is_of(asked.tag) || is_of(asked.body))
            })
        };
        let ends = answer.times.iter();
        let ends = ends.map(|(index, _)| answer.until(*index, told));
        let ends: Vec<_> = ends.collect();
        if ends.iter().any(|end| end.is_none_or(|end| end >= oldest)) {
            return Ok(());
        }
        Err(format!(
            "too old: true until {:?}, requested at {}, must be true at {oldest} or later: {} {} {}",
            ends.iter().flatten().max(),
            at.at,
            reply.cache_status,
            reply.cache_control,
            answer.text
        ))
    }

    /// It names no block that is known to be undone.
    fn check_orphans(
        &self,
        answer: &Judged<'_>,
        known: impl Fn(u32) -> Option<Hash>,
    ) -> Result<(), String> {
        let Some(block) = answer.block() else {
            return Ok(());
        };
        let of = &answer.world.blocks[block];
        let is_hit = answer.reply.says("; hit");
        let other = known(of.height).filter(|known| Some(*known) != hash(&of.hash));
        if is_hit && answer.tip() == RUNES && other.is_some() {
            return Err(answer.names_orphan("ordgate knows another block there", block));
        }
        let is_behind = answer.from.is_behind && !is_hit;
        let at = answer.at.at;
        if !self.weather.fails()
            && !is_behind
            && self.is_undone(answer.world, answer.tip(), block, at)
        {
            return Err(answer.names_orphan("it names an orphan", block));
        }
        Ok(())
    }

    /// Only what is deep below the tip is immutable, and clients may keep other
    /// answers for a short time only.
    fn check_lifetime(&self, answer: &Judged<'_>) -> Result<(), String> {
        let text = answer.text;
        if !answer.is_immutable {
            let most = self.most_age(answer.at, text);
            let age = answer.reply.max_age().map(|seconds| seconds * 1000);
            return match age.zip(most).filter(|(age, most)| age > most) {
                Some((age, most)) => Err(format!("max-age {age} ms beyond {most} ms: {text}")),
                None => Ok(()),
            };
        }
        let peak = answer.at.peak.max(self.peak[answer.tip()]);
        let mut heights = answer.times.iter().map(|(_, thing)| answer.height(*thing));
        match heights.any(|height| height.is_some_and(|height| height + FINAL_DEPTH <= peak)) {
            true => Ok(()),
            false => Err(format!("immutable, and not deep below {peak}: {text}")),
        }
    }

    /// No purge before the request matches what it is from.
    fn check_purges(&self, answer: &Judged<'_>) -> Result<(), String> {
        let (at, from, text) = (answer.at, answer.from, answer.text);
        let block = answer.block();
        let height = block.map(|block| answer.world.blocks[block].height);
        let since = self.purges.iter();
        for (purge, _) in since.filter(|(_, purge)| from.nth < *purge && *purge < at.nth) {
            // Of a page that was cut from several answers, this is the first.
            let source = answer.world.render(from.thing.unwrap(), &from.target).1;
            if covers(purge, &at.target, &from.target, [text, &source], height) {
                return Err(format!(
                    "{purge:?} was before, but it is from upstream {}: {} {text}",
                    from.text, answer.reply.cache_status
                ));
            }
        }
        Ok(())
    }
}
