//! Judging what clients got: how old it was, and whether it was ever true.
//!
//! The age of an answer is the time between the moment when its body ceased to
//! be the truth for that target and the moment when the request for it was
//! sent; an answer that was true then, or became so later, has age zero. Which
//! version of the chain an answer comes from is found by its bytes: the newest
//! that would have said the same, among those that stood before it arrived.

use std::time::Duration;

use memchr::memmem;

use crate::history::Truth;
use crate::play::{Played, Take};
use crate::trace::Trace;

/// What all answers of a subject come to.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) requests: usize,
    /// No answer, or that something is at fault (429, 5xx).
    pub(crate) errors: usize,
    /// Never true, or naming an orphan for longer than the bound.
    pub(crate) wrong: usize,
    /// Older than the bound.
    pub(crate) late: usize,
    pub(crate) oldest: Duration,
    /// Some of the wrong ones and the oldest, for whoever wants to know why.
    pub(crate) notes: Vec<String>,
}

/// So many wrong answers are told one by one.
const MOST_NOTES: usize = 5;

pub(crate) fn judge(
    trace: &Trace,
    played: &Played,
    truth: &mut Truth<'_>,
    bound: Duration,
) -> Verdict {
    let mut verdict = Verdict {
        requests: played.takes.len(),
        ..Verdict::default()
    };
    let mut oldest = None;
    for take in &played.takes {
        let target = trace.asks[take.ask].to_string();
        let (digest, status) = match take.answer {
            Some((status, digest)) if status != 429 && status < 500 => (digest, status),
            Some((status, _)) => {
                verdict.errors += 1;
                verdict.note(format!("{target}: {status}"));
                continue;
            }
            None => {
                verdict.errors += 1;
                verdict.note(format!("{target}: no answer"));
                continue;
            }
        };
        let stood = played
            .changes
            .partition_point(|(before, _)| *before <= take.done);
        let from = (0..=stood)
            .rev()
            .find(|version| truth.digest(&target, *version) == digest);
        let Some(from) = from else {
            verdict.wrong += 1;
            verdict.note(format!("{target}: never true (status {status})"));
            continue;
        };
        let age = age(played, from, take);
        if age > verdict.oldest {
            verdict.oldest = age;
            oldest = Some(target.clone());
        }
        if age <= bound {
            continue;
        }
        verdict.late += 1;
        if names_orphan(&target, from, played, take, truth, bound) {
            verdict.wrong += 1;
            verdict.note(format!("{target}: names an orphan, {age:?} old"));
        }
    }
    if let Some(target) = oldest {
        let line = format!("{target}: the oldest, {:?}", verdict.oldest);
        verdict.notes.push(line);
    }
    verdict
}

/// How long the truth of a version had been over when the request was sent.
fn age(played: &Played, from: usize, take: &Take) -> Duration {
    // The change after a version ends it.
    let ended = played.changes.get(from).map(|(_, after)| *after);
    ended.map_or(Duration::ZERO, |ended| take.sent.saturating_sub(ended))
}

/// Whether the body names a block that had been replaced longer ago than the
/// bound.
fn names_orphan(
    target: &str,
    from: usize,
    played: &Played,
    take: &Take,
    truth: &Truth<'_>,
    bound: Duration,
) -> bool {
    let body = truth.history.answer(from, target).body;
    truth.history.orphans().iter().any(|orphan| {
        let gone = played
            .changes
            .get(orphan.gone - 1)
            .map(|(_, after)| *after + bound);
        gone.is_some_and(|gone| gone < take.sent)
            && memmem::find(&body, orphan.hash.as_bytes()).is_some()
    })
}

impl Verdict {
    fn note(&mut self, line: String) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(line);
        }
    }
}
