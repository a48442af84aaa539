//! What the requests of one budget have spent, as the next process must know it. Pure:
//! times are arguments.
//!
//! It is a page of fixed size, whatever the limits: how many requests are in flight,
//! how many have ended in each tenth of a second of the last minute, and what the provider
//! has asked for ([`Restrictions`]). Times in it
//! are relative to the moment of writing, which it has as the time since the boot of
//! the machine, suspended time included.
//!
//! The next process counts a request as ended at the end of its tenth of a second. It
//! counts one that was in flight from its own start: the requests of a process that has
//! ended may still lie in the server's buffers, but nothing is sent any more. Where a
//! page cannot be trusted, it assumes that the whole budget was spent until its start.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use super::restrictions::{self, Restrictions};
use crate::clock::Moment;
use crate::state_dir::BootId;

/// The size of a page, which is that of a memory page: a write is never half done when
/// the process is killed.
pub(crate) const PAGE: usize = 4096;
/// How many requests have ended is counted in steps of this time.
const STEP: Duration = Duration::from_millis(100);
/// Steps that are kept: 64 s, more than the longest window.
const STEPS: usize = 640;
/// The first bytes of a page; the last is the version of what follows.
const MAGIC: [u8; 8] = *b"ordspnt2";
/// The version before, without restrictions.
const MAGIC_1: [u8; 8] = *b"ordspnt1";
/// Before the counts: see [`Spending::page`].
const HEAD: usize = 80;
/// The end of the counts.
const COUNTED: usize = HEAD + 4 * STEPS;
/// The end of the restrictions, where the digest begins.
const BODY: usize = COUNTED + restrictions::BYTES;
const DIGEST: usize = 16;
/// Stands for "never".
const NEVER: u64 = u64::MAX;
/// No more requests than this are taken over, which is the highest limit.
const MOST: u64 = 1_000_000;

/// When a page is written or read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The time since the machine was started, suspended time included.
    pub(crate) since_boot: Duration,
    /// The same moment on the process's clock.
    pub(crate) now: Moment,
}

/// What a budget's requests have spent.
#[derive(Debug)]
pub(crate) struct Spending {
    in_flight: u64,
    /// Requests that have ended, by step; a ring, at the step's number modulo its length.
    ended: Box<[u32; STEPS]>,
    /// The newest step of the ring.
    newest: u64,
    /// Any number of requests may have been sent before this moment.
    unknown_before: Option<Moment>,
}

/// What is known of earlier processes' spending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EarlierSpending {
    /// Requests that had not ended.
    pub(crate) interrupted: u64,
    /// When requests ended, the earliest first.
    pub(crate) ended: Vec<(Moment, u64)>,
    /// Any number of requests may have been sent before this moment.
    pub(crate) unknown_before: Option<Moment>,
    /// What providers have asked for.
    pub(crate) restrictions: Restrictions,
}

/// Why a page says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It was never written.
    Empty,
    /// It is torn, damaged, or not a page.
    Damaged,
    /// It was written before the machine was restarted, or on another machine.
    OtherBoot,
}

impl EarlierSpending {
    /// Nothing is known before a moment.
    pub(crate) fn unknown_before(moment: Moment) -> Self {
        Self {
            unknown_before: Some(moment),
            ..Self::default()
        }
    }

    /// Nothing is known of what was spent before a moment.
    pub(crate) fn forget_spending(&mut self, moment: Moment) {
        let restrictions = std::mem::take(&mut self.restrictions);
        *self = Self {
            restrictions,
            ..Self::unknown_before(moment)
        };
    }

    /// How many requests are counted.
    pub(crate) fn requests(&self) -> u64 {
        self.interrupted + self.ended.iter().map(|(_, requests)| requests).sum::<u64>()
    }
}

impl Default for Spending {
    fn default() -> Self {
        Self {
            in_flight: 0,
            ended: Box::new([0; STEPS]),
            newest: 0,
            unknown_before: None,
        }
    }
}

impl Spending {
    /// Counts what earlier processes have spent as well. What was unknown until now is
    /// what they do not know.
    pub(crate) fn add_earlier(&mut self, earlier: &EarlierSpending) {
        self.in_flight += earlier.interrupted;
        self.unknown_before = earlier.unknown_before;
        for (moment, requests) in &earlier.ended {
            self.count(*moment, *requests);
        }
    }

    /// Counts a request that is about to be sent.
    pub(crate) fn take(&mut self) {
        self.in_flight += 1;
    }

    /// Counts the end of a request.
    pub(crate) fn end(&mut self, at: Moment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.count(at, 1);
    }

    fn count(&mut self, at: Moment, requests: u64) {
        let step = step_of(at);
        if step > self.newest {
            // The steps that come into the ring.
            for new in (self.newest + 1..=step).rev().take(STEPS) {
                self.ended[index(new)] = 0;
            }
            self.newest = step;
        }
        if self.newest - step < STEPS as u64 {
            let count = &mut self.ended[index(step)];
            *count = count.saturating_add(u32::try_from(requests).unwrap_or(u32::MAX));
        }
    }

    /// The page. `name` is the name of the budget in the state directory.
    ///
    /// ```text
    ///  0  magic            8  name         24  boot id      40  time since boot
    /// 48  age of the newest step's beginning   56  in flight
    /// 64  age of unknown_before, or never      72  0
    /// 80  ended requests by step, the newest first       2640  restrictions   3920  digest
    /// ```
    pub(crate) fn page(
        &self,
        restrictions: &Restrictions,
        name: &[u8; 16],
        boot: &BootId,
        at: Stamp,
    ) -> Box<[u8; PAGE]> {
        let mut page = Box::new([0; PAGE]);
        let age = |moment: Moment| nanos(at.now.since(moment));
        page[..8].copy_from_slice(&MAGIC);
        page[8..24].copy_from_slice(name);
        page[24..40].copy_from_slice(boot);
        let numbers = [
            nanos(at.since_boot),
            age(beginning(self.newest)),
            self.in_flight,
            self.unknown_before.map_or(NEVER, age),
        ];
        for (place, number) in page[40..72].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (back, place) in (0..).zip(page[HEAD..COUNTED].chunks_exact_mut(4)) {
            let count = match self.newest.checked_sub(back) {
                Some(step) => self.ended[index(step)],
                None => 0,
            };
            place.copy_from_slice(&count.to_le_bytes());
        }
        restrictions.write(&mut page[COUNTED..BODY], at.now);
        let digest = digest_of(&page[..BODY]);
        page[BODY..BODY + DIGEST].copy_from_slice(&digest);
        page
    }
}

/// The name in a page, and what the page says of earlier processes.
///
/// # Errors
/// Why it says nothing.
pub(crate) fn read(
    page: &[u8],
    boot: Option<&BootId>,
    at: Stamp,
) -> Result<([u8; 16], EarlierSpending), Unreadable> {
    if page.iter().all(|byte| *byte == 0) {
        return Err(Unreadable::Empty);
    }
    let body = body(page).ok_or(Unreadable::Damaged)?;
    let written = Duration::from_nanos(number(page, 40));
    // A time before that of writing is that of another time namespace.
    let since_written = at.since_boot.checked_sub(written);
    let is_same_boot = boot.is_some_and(|boot| page[24..40] == *boot);
    let Some(since_written) = since_written.filter(|_| is_same_boot) else {
        return Err(Unreadable::OtherBoot);
    };
    let ago = |age: u64| at.now.before(since_written + Duration::from_nanos(age));
    let newest_age = number(page, 48);
    let step = nanos(STEP);
    let mut ended = Vec::new();
    for (back, count) in (0..STEPS as u64)
        .rev()
        .zip(page[HEAD..COUNTED].rchunks_exact(4))
    {
        let requests = count
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if requests > 0 {
            // At the end of its step, at the latest when the page was written.
            let age = newest_age.saturating_add(back * step).saturating_sub(step);
            ended.push((ago(age), requests.min(MOST)));
        }
    }
    let unknown_before = number(page, 64);
    Ok((
        name_in(page),
        EarlierSpending {
            interrupted: number(page, 56).min(MOST),
            ended,
            unknown_before: (unknown_before != NEVER).then(|| ago(unknown_before)),
            restrictions: restrictions_in(body, since_written, at.now),
        },
    ))
}

/// The name in a page that another boot has left, and what providers had asked for. How
/// long ago is not known.
pub(crate) fn read_of_other_boot(page: &[u8], now: Moment) -> Option<([u8; 16], Restrictions)> {
    let restrictions = restrictions_in(body(page)?, Duration::ZERO, now);
    Some((name_in(page), restrictions))
}

/// What a whole page's digest is of.
fn body(page: &[u8]) -> Option<&[u8]> {
    let end = match page.get(..8)? {
        magic if magic == MAGIC => BODY,
        magic if magic == MAGIC_1 => COUNTED,
        _ => return None,
    };
    let digest = page.get(end..end + DIGEST)?;
    (page.len() == PAGE && *digest == digest_of(&page[..end])).then(|| &page[..end])
}

fn name_in(page: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    name.copy_from_slice(&page[8..24]);
    name
}

fn restrictions_in(body: &[u8], since_written: Duration, now: Moment) -> Restrictions {
    match body.get(COUNTED..BODY) {
        Some(part) => Restrictions::read(part, since_written, now),
        None => Restrictions::default(),
    }
}

/// How long ago a page was written that was [`read`].
pub(crate) fn age(page: &[u8], at: Stamp) -> Duration {
    let written = Duration::from_nanos(number(page, 40));
    at.since_boot.saturating_sub(written)
}

fn number(page: &[u8], at: usize) -> u64 {
    let bytes = page[at..at + 8].iter().rev();
    bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn digest_of(bytes: &[u8]) -> [u8; DIGEST] {
    let mut first = [0; DIGEST];
    first.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..DIGEST]);
    first
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER - 1)
}

fn step_of(moment: Moment) -> u64 {
    moment.nanos() / nanos(STEP)
}

fn beginning(step: u64) -> Moment {
    Moment::from_nanos(step * nanos(STEP))
}

fn index(step: u64) -> usize {
    usize::try_from(step % STEPS as u64).unwrap_or(0)
}

/// A page with other bytes, whole again.
#[cfg(test)]
pub(crate) fn changed(page: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut page = page.to_vec();
    change(&mut page);
    let end = if page[..8] == MAGIC { BODY } else { COUNTED };
    let digest = digest_of(&page[..end]);
    page[end..end + DIGEST].copy_from_slice(&digest);
    page
}

#[cfg(test)]
mod tests;
