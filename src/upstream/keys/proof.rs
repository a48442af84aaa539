//! That no key is ever asked for more than its budget, whatever happens to the
//! keys meanwhile.
//!
//! The claim. A request counts from its grant to its end, or for a while longer
//! where it is given up; at which moment of that the upstream counts it, we do
//! not know. When a request is granted, no
//! more than the bound then in force count of those that had not ended a second
//! (a minute) ago, this one among them. It follows that no window of a second
//! (a minute), wherever it begins and at whatever moments the upstream counts,
//! holds more than the bound that was in force when the last of its requests
//! was granted: whichever others it holds had not ended a window's length before
//! that moment. Where a bound goes down, what was sent before it did may be more
//! than it; nothing is added until it is less.
//!
//! The same goes for each word of the upstream about what is left: from when it
//! is heard until it ends, no more are granted than it says, less those that the
//! upstream may not have counted when it said so.
//!
//! A key is its value here: it may be called otherwise after a reload, be away
//! for a while, or be in the hands of a second upstream at the same time.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use super::{ApiKey, Denied, Grant, Keys, WITHDRAWN};
use crate::clock::{Clock, Moment};
use crate::identify::Caller;
use crate::upstream::budget::{Budget, LATE};
use crate::upstream::line::Line;
use crate::upstream::reported::{Reported, Window, Word};
use crate::upstream::{Priority, Wish};

/// The keys that there are, by their values; the last one is none.
const VALUES: [&str; 4] = ["first-key-of-ours", "second-key", "third-key", ""];
/// Probes a minute that a share is kept for.
const PROBES: u32 = 3;
/// So many words are held at the least.
const MOST_WORDS: usize = 8;

type Outcome = Result<(), TestCaseError>;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// Time goes by.
    Pause(u64),
    /// So many requests are wished, for ordgate itself or a client, each of which
    /// would take so long.
    Ask(Wish, Vec<u64>),
    /// One that is under way ends before its time, answered or never sent.
    End(usize),
    /// One that is under way is given up; it may reach the upstream yet.
    GiveUp(usize),
    /// One that is under way is answered.
    Answer(usize, Said),
    /// One that is under way fails and is sent again.
    Retry(usize, u64),
    /// A reload: which keys there are, the bounds, and whether the upstream
    /// is another one from now on.
    Reload(u8, u32, u32, bool),
}

/// What an answer says of the key.
#[derive(Clone, Debug)]
enum Said {
    Left(Vec<Word>),
    QuotaSpent(u64),
    TooOften(u64),
    Refused,
    Accepted,
}

fn word() -> impl Strategy<Value = Word> {
    use Window::{Day, Hour, Minute, Month, Second, Unnamed};
    // A word about a day that is spent says all that there is to say for long.
    let windows = [
        Unnamed, Unnamed, Second, Minute, Minute, Minute, Hour, Hour, Day, Month,
    ];
    let longest = |window| match window {
        Second => 1,
        Minute => 60,
        Unnamed | Hour | Day | Month => 3600,
    };
    let word = move |(at, left, lasts, told): (usize, u64, u64, bool)| {
        let window = windows[at];
        let longest = longest(window);
        Word {
            window,
            left,
            // Where no end is told it is the longest that it can be.
            lasts: Duration::from_secs(if told { lasts.min(longest) } else { longest }),
            told,
        }
    };
    (0_usize..10, 0_u64..20, 1_u64..120, any::<bool>()).prop_map(word)
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        12 => vec(word(), 1..3).prop_map(Said::Left),
        1 => (1_u64..200).prop_map(Said::QuotaSpent),
        2 => (1_u64..90).prop_map(Said::TooOften),
        2 => Just(Said::Refused),
        4 => Just(Said::Accepted),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wish = (0_usize..4, proptest::option::of(0_u32..3)).prop_map(|(rank, client)| Wish {
        priority: Priority::ALL[rank],
        caller: client.map(Caller::V4),
    });
    // Most take a moment, some longer than any window.
    let takes = prop_oneof![6 => 0_u64..900, 2 => 0_u64..5_000, 1 => 0_u64..150_000];
    prop_oneof![
        6 => (0_u64..400).prop_map(Step::Pause),
        2 => (900_u64..1_200).prop_map(Step::Pause),
        2 => (0_u64..70_000).prop_map(Step::Pause),
        1 => (0_u64..4_000_000).prop_map(Step::Pause),
        12 => (wish, vec(takes.clone(), 1..8)).prop_map(|(wish, takes)| Step::Ask(wish, takes)),
        3 => any::<usize>().prop_map(Step::End),
        2 => any::<usize>().prop_map(Step::GiveUp),
        8 => (any::<usize>(), said()).prop_map(|(at, said)| Step::Answer(at, said)),
        2 => (any::<usize>(), takes).prop_map(|(at, takes)| Step::Retry(at, takes)),
        2 => (0_u8..8, 8_u32..30, 2_u32..7, proptest::bool::weighted(0.2))
            .prop_map(|(keys, minute, second, away)| Step::Reload(keys, minute, second, away)),
    ]
}

/// The keys of a set of bits, in one order or the other.
fn list(bits: u8) -> Vec<ApiKey> {
    let chosen = (0..3).filter(|at| bits & 1 << at != 0);
    let mut names: Vec<_> = chosen.map(|at| VALUES[at]).collect();
    if bits.count_ones() == 2 {
        names.reverse();
    }
    ApiKey::list(&names.join(",")).unwrap_or_default()
}

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// A request as the upstream may have counted it.
struct Sent {
    value: usize,
    from: u64,
    /// `None` while it is under way.
    to: Option<u64>,
}

/// One that is under way.
struct UnderWay {
    grant: Grant,
    /// Its place in the history.
    at: usize,
    due: u64,
}

/// A word that holds, and how many may yet be granted.
struct Held {
    left: u64,
    until: u64,
    window: Window,
    told: bool,
}

/// A key that rests, and who tries it.
struct Resting {
    until: u64,
    tried_by: Option<usize>,
    refused: bool,
}

/// What is known of a key.
#[derive(Default)]
struct Known {
    words: Vec<Held>,
    cool_until: u64,
    rest: Option<Resting>,
    /// Since when it is not in service.
    away: Option<u64>,
}

/// The keys, and what must hold of them.
struct World {
    clock: Clock,
    begun: Moment,
    keys: Arc<Keys>,
    bits: u8,
    minute: u32,
    second: u32,
    under_way: Vec<UnderWay>,
    history: Vec<Sent>,
    known: [Known; VALUES.len()],
}

impl World {
    fn new() -> Self {
        let clock = Clock::manual();
        let (minute, second, bits) = (20, 4, 0b11);
        let budget = || Budget::new(number(minute), number(second));
        let line = Line::new(10, clock.clone());
        let keys = Keys::new(list(bits), budget, line, clock.clone());
        keys.keep_for_probes(PROBES);
        Self {
            begun: clock.now(),
            clock,
            keys,
            bits,
            minute,
            second,
            under_way: Vec::new(),
            history: Vec::new(),
            known: Default::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    /// Time goes by, and whatever is due then ends at its moment.
    fn pause(&mut self, millis: u64) {
        let then = self.now() + millis;
        loop {
            let due = self.under_way.iter().map(|one| one.due).enumerate();
            let next = due.min_by_key(|(_, due)| *due);
            let Some((at, due)) = next.filter(|(_, due)| *due <= then) else {
                break;
            };
            self.advance_to(due);
            self.end(at);
        }
        self.advance_to(then);
    }

    fn advance_to(&self, then: u64) {
        let by = then.saturating_sub(self.now());
        self.clock.advance(Duration::from_millis(by));
    }

    fn end(&mut self, at: usize) {
        let one = self.under_way.swap_remove(at);
        let now = self.now();
        let sent = &mut self.history[one.at];
        sent.to = Some(now);
        if let Some(rest) = &mut self.known[sent.value].rest
            && rest.tried_by == Some(one.at)
        {
            *rest = Resting {
                until: now + 60_000,
                tried_by: None,
                ..*rest
            };
        }
        drop(one.grant);
    }

    fn give_up(&mut self, at: usize) {
        let one = &mut self.under_way[at];
        one.grant.send();
        let place = one.at;
        self.end(at);
        let late = u64::try_from(LATE.as_millis()).unwrap();
        self.history[place].to = Some(self.now() + late);
    }

    /// How many requests of a value may have been counted since a moment.
    fn counted(&self, value: usize, since: Option<u64>) -> usize {
        let counts = |sent: &&Sent| {
            let ended = sent.to.is_some_and(|to| Some(to) <= since);
            sent.value == value && !ended
        };
        self.history.iter().filter(counts).count()
    }

    fn counted_within(&self, value: usize, span: u64) -> usize {
        self.counted(value, self.now().checked_sub(span))
    }

    /// Wishes to send one, which would take so long; whether it may.
    fn ask(&mut self, wish: impl Into<Wish>, takes: u64) -> Result<bool, TestCaseError> {
        let (now, wish) = (self.now(), wish.into());
        let Ok(grant) = self.keys.take(wish) else {
            return Ok(false);
        };
        let value = grant.header().map_or("", |value| value.to_str().unwrap());
        let value = VALUES.iter().position(|one| *one == value).unwrap();
        let expected = match self.bits {
            0 => value == 3,
            bits => value < 3 && bits & 1 << value != 0,
        };
        prop_assert!(expected, "{value} is in service");
        let at = self.history.len();
        self.history.push(Sent {
            value,
            from: now,
            to: None,
        });
        let due = now + takes;
        self.under_way.push(UnderWay { grant, at, due });

        let (minute, second) = (self.minute as usize, self.second as usize);
        let in_minute = self.counted_within(value, 60_000);
        let in_second = self.counted_within(value, 1_000);
        prop_assert!(in_minute <= minute, "{in_minute} of {minute} in a minute");
        prop_assert!(in_second <= second, "{in_second} of {second} in a second");
        let for_probes = (minute / 20).max((PROBES as usize).min(minute / 4));
        let kept = match (wish.priority, wish.caller) {
            (Priority::Probe, _) => 0,
            (Priority::Revalidation, None) => for_probes + minute / 10,
            // A client that has had little may take what is kept for such.
            (Priority::Miss, None) | (Priority::Miss | Priority::Revalidation, Some(_)) => {
                for_probes
            }
            (Priority::LookAhead, _) => minute / 2,
        };
        let left = minute - in_minute;
        prop_assert!(left >= kept, "{wish:?} leaves {left} of {kept}");

        let known = &mut self.known[value];
        for word in known.words.iter_mut().filter(|word| word.until > now) {
            prop_assert!(word.left > 0, "{:?} has nothing left", word.window);
            word.left -= 1;
        }
        prop_assert!(known.cool_until <= now, "it cools");
        if let Some(rest) = &mut known.rest {
            prop_assert!(rest.until <= now, "it rests");
            prop_assert!(rest.tried_by.is_none(), "another tries it");
            rest.tried_by = Some(at);
        }
        Ok(true)
    }

    fn answer(&mut self, at: usize, said: &Said) {
        let now = self.now();
        let one = &self.under_way[at];
        let Sent { value, from, .. } = self.history[one.at];
        // Those that were under way when it was sent, and those sent since.
        let others = self.counted(value, Some(from)) as u64 - 1;
        let others = others.max(self.after(one.at, value));
        let known = &mut self.known[value];
        let tries = |rest: &Resting| rest.tried_by == Some(one.at);
        match said {
            Said::Left(words) => {
                known.words.retain(|held| held.until > now);
                if known.words.len() + words.len() > MOST_WORDS {
                    return;
                }
                one.grant.hear(&Reported {
                    words: words.clone(),
                    quota_spent: None,
                });
                for word in words {
                    // What has no named end ends where its like says more.
                    let like = |held: &Held| held.window == word.window && !held.told;
                    known.words.retain(|held| word.told || !like(held));
                    let doubt = if word.lasts > Duration::from_secs(1) {
                        others
                    } else {
                        0
                    };
                    known.words.push(Held {
                        left: word.left.saturating_sub(doubt),
                        until: now + u64::try_from(word.lasts.as_millis()).unwrap(),
                        window: word.window,
                        told: word.told,
                    });
                }
            }
            Said::QuotaSpent(seconds) => {
                one.grant.hear(&Reported {
                    words: Vec::new(),
                    quota_spent: Some(Duration::from_secs(*seconds)),
                });
                if known.rest.as_ref().is_none_or(tries) {
                    known.rest = Some(Resting {
                        until: now + seconds * 1_000,
                        tried_by: None,
                        refused: false,
                    });
                }
            }
            Said::TooOften(seconds) => {
                one.grant.cool(Duration::from_secs(*seconds));
                known.cool_until = known.cool_until.max(now + seconds * 1_000);
            }
            Said::Refused => {
                one.grant.refused(StatusCode::FORBIDDEN);
                if !VALUES[value].is_empty() && known.rest.as_ref().is_none_or(tries) {
                    known.rest = Some(Resting {
                        until: now + 60_000,
                        tried_by: None,
                        refused: true,
                    });
                }
            }
            Said::Accepted => {
                one.grant.accepted();
                if known.rest.as_ref().is_some_and(tries) {
                    known.rest = None;
                }
            }
        }
        self.end(at);
    }

    /// How many of a value were sent after one.
    fn after(&self, at: usize, value: usize) -> u64 {
        let later = self.history[at + 1..].iter();
        later.filter(|sent| sent.value == value).count() as u64
    }

    fn reload(&mut self, bits: u8, minute: u32, second: u32, away: bool) {
        if away {
            self.keys = self.keys.elsewhere();
        }
        let stays = if away { 0 } else { self.bits };
        (self.bits, self.minute, self.second) = (bits, minute, second);
        self.keys
            .replace(list(bits), number(minute), number(second));
        let now = self.now();
        for (at, known) in self.known.iter_mut().enumerate() {
            let is_there = match at {
                3 => bits == 0,
                at => bits & 1 << at != 0,
            };
            if is_there {
                known.away = None;
                continue;
            }
            // One that is away for long is forgotten in the end.
            let since = *known.away.get_or_insert(now);
            if now - since >= WITHDRAWN.as_millis() as u64 {
                known.rest = None;
            }
        }
        // Whoever brings a key back that was refused wants it tried.
        for at in (0..3).filter(|at| bits & 1 << at != 0 && stays & 1 << at == 0) {
            let known = &mut self.known[at];
            if known.rest.as_ref().is_some_and(|rest| rest.refused) {
                known.rest = None;
            }
        }
    }

    fn step(&mut self, step: &Step) -> Outcome {
        let there = self.under_way.len();
        match step {
            Step::Pause(millis) => self.pause(*millis),
            Step::Ask(wish, takes) => {
                for takes in takes {
                    self.ask(*wish, *takes)?;
                }
            }
            Step::End(at) if there > 0 => self.end(at % there),
            Step::Answer(at, said) if there > 0 => self.answer(at % there, said),
            Step::GiveUp(at) if there > 0 => self.give_up(at % there),
            Step::Retry(at, takes) if there > 0 => {
                self.end(at % there);
                self.ask(Priority::Miss, *takes)?;
            }
            Step::Reload(keys, minute, second, away) => {
                self.reload(*keys, *minute, *second, *away);
            }
            Step::End(_) | Step::GiveUp(_) | Step::Answer(..) | Step::Retry(..) => {}
        }
        Ok(())
    }

    /// What is told to who is refused is true where nobody else asks.
    fn waits_are_true(&mut self) -> Outcome {
        while !self.under_way.is_empty() {
            self.end(0);
        }
        // What was given up has ended as well by then.
        self.clock.advance(LATE);
        let own = Priority::ALL.map(Wish::own);
        let client = Wish::of(Caller::V4(0), Priority::Miss);
        for wish in own.into_iter().chain([client]) {
            let wait = loop {
                match self.keys.take(wish) {
                    // It is over at once, and has told nothing.
                    Ok(grant) => drop(grant),
                    Err(Denied::For(wait)) => break Some(wait),
                    Err(_) => break None,
                }
            };
            let Some(wait) = wait else {
                continue;
            };
            prop_assert!(!wait.is_zero());
            self.clock.advance(wait);
            let taken = self.keys.take(wish).err();
            prop_assert!(taken.is_none(), "{wish:?} after {wait:?}: {taken:?}");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_key_is_asked_for_more_than_its_budget(steps in vec(step(), 1..100)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
        world.waits_are_true()?;
    }

    /// The same from the upstream's side: at whatever moment between its grant
    /// and its end each request is counted, no window holds too many.
    #[test]
    fn no_window_of_the_upstreams_holds_too_many(
        steps in vec(step(), 1..100),
        shares in vec(0_u64..=100, 1..40),
    ) {
        let mut world = World::new();
        let (mut minute, mut second) = (world.minute, world.second);
        for step in &steps {
            world.step(step)?;
            (minute, second) = (minute.max(world.minute), second.max(world.second));
        }
        world.pause(200_000);
        for value in 0..VALUES.len() {
            let sent = world.history.iter().zip(shares.iter().cycle());
            let of_it = sent.filter(|(sent, _)| sent.value == value);
            let counted = of_it.map(|(sent, share)| {
                let took = sent.to.unwrap() - sent.from;
                sent.from + took * share / 100
            });
            let mut counted: Vec<_> = counted.collect();
            counted.sort_unstable();
            for (most, span) in [(minute as usize, 60_000), (second as usize, 1_000)] {
                for window in counted.windows(most + 1) {
                    prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
                }
            }
        }
    }
}

/// That the properties above say something: requests are granted, a good deal
/// of them, and they are refused for each of the reasons that there are.
#[test]
fn what_may_be_asked_is_asked() {
    let mut world = World::new();
    let mut granted = 0;
    for _ in 0..60 {
        for _ in 0..5 {
            granted += usize::from(world.ask(Priority::Probe, 0).unwrap());
        }
        world.pause(1_000);
    }
    assert_eq!(granted, 40, "two keys' minutes are used to the last");
}
