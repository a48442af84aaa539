//! A model of what keys are asked for, beside the real thing.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use proptest::prelude::prop_assert;
use proptest::test_runner::TestCaseError;

use super::{Fate, Said, Step};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::admission::budget::{ARRIVAL_LIMIT, SECOND_WINDOW};
use crate::upstream::admission::budgets::{BudgetOwner, Budgets, REMEMBERED};
use crate::upstream::admission::limit_report::{LimitReport, LimitWindow};
use crate::upstream::admission::queue::AdmissionQueue;
use crate::upstream::client::connection::{Connection, SendPath};
use crate::upstream::endpoint::given_up::GivenUpRequests;
use crate::upstream::keys::{ApiKey, BudgetPermit, Denied, Keys};
use crate::upstream::{Priority, Rate, Rates, RequestPriority};

/// The keys that there are.
const KEYS: [&str; 3] = ["first-key-of-ours", "second-key", "third-key"];
/// The servers that are asked, perhaps without a key.
pub(super) const SERVERS: usize = 2;
/// Whoever has a budget: a key or, after those, a server.
pub(super) const VALUES: usize = KEYS.len() + SERVERS;
/// So many upstreams there may be at once.
pub(super) const PLACES: usize = 3;
/// Probes a minute that each upstream keeps a share for.
const PROBES: u32 = 3;
/// So many words are held at the least.
const MOST_WORDS: usize = 8;

type Outcome = Result<(), TestCaseError>;

/// The keys of a set of bits, in one order or the other.
fn list(bits: u8) -> Vec<ApiKey> {
    let chosen = (0..KEYS.len()).filter(|at| bits & 1 << at != 0);
    let mut names: Vec<_> = chosen.map(|at| KEYS[at]).collect();
    if bits.count_ones() == 2 {
        names.reverse();
    }
    ApiKey::list(&names.join(",")).unwrap_or_default()
}

fn server(number: usize) -> BudgetOwner {
    BudgetOwner::Server(format!("server-{number}:80").into())
}

/// 0 for any number.
fn rates(minute: u32, second: u32) -> Rates {
    let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
    Rates {
        per_minute: rate(minute),
        per_second: rate(second),
    }
}

/// A request as the upstream may have counted it.
pub(super) struct Sent {
    pub(super) value: usize,
    upstream: usize,
    server: usize,
    pub(super) from: u64,
    /// `None` while it is under way.
    pub(super) to: Option<u64>,
    /// Until when it counts as unanswered; `None` while it is under way.
    unanswered: Option<u64>,
}

impl Sent {
    /// Whether the share of its upstream is still counted: an upstream that has not
    /// had the key for so long begins anew. No request lasts as long.
    fn is_known(&self, now: u64) -> bool {
        Duration::from_millis(now - self.from) < REMEMBERED
    }
}

/// One that is under way.
struct UnderWay {
    grant: BudgetPermit,
    connection: Connection,
    /// Its place in the history.
    at: usize,
    due: u64,
}

/// One that was given up, and may still be counted.
struct GivenUp {
    connection: Connection,
    /// Its place in the history.
    at: usize,
    /// When it was given up.
    since: u64,
}

/// A word that holds, and how many may yet be granted.
struct Held {
    left: u64,
    until: u64,
    window: LimitWindow,
    told: bool,
}

/// A key that rests, and who tries it.
struct Resting {
    until: u64,
    tried_by: Option<usize>,
    refused: bool,
}

/// What an upstream has said of a key.
#[derive(Default)]
struct Known {
    cool_until: u64,
    rest: Option<Resting>,
    /// Since when it is not in service.
    away: Option<u64>,
}

/// An upstream, or one that has been.
struct Upstream {
    keys: Arc<Keys>,
    bits: u8,
    server: usize,
    rates: (u32, u32),
    is_there: bool,
    known: [Known; VALUES],
    /// What was given up at each server.
    lates: [Arc<GivenUpRequests>; SERVERS],
    /// The connections that it shares among requests, to each server.
    shared: [Connection; SERVERS],
}

impl Upstream {
    /// Whether its requests may count against this budget.
    fn has(&self, value: usize) -> bool {
        self.is_there
            && match self.bits {
                0 => value == KEYS.len() + self.server,
                bits => value < KEYS.len() && bits & 1 << value != 0,
            }
    }
}

/// The keys, and what must hold of them.
pub(super) struct World {
    clock: Clock,
    begun: Moment,
    budgets: Arc<Budgets>,
    /// All that there ever were.
    upstreams: Vec<Upstream>,
    places: [Option<usize>; PLACES],
    under_way: Vec<UnderWay>,
    given_up: Vec<GivenUp>,
    /// Which servers do not run.
    is_frozen: [bool; SERVERS],
    pub(super) history: Vec<Sent>,
    words: [Vec<Held>; VALUES],
    /// The loosest bounds that any request was granted under.
    pub(super) loosest: [(usize, usize); VALUES],
}

impl World {
    pub(super) fn new() -> Self {
        let clock = Clock::manual();
        let mut world = Self {
            begun: clock.now(),
            clock,
            budgets: Budgets::new(),
            upstreams: Vec::new(),
            places: [None; PLACES],
            under_way: Vec::new(),
            given_up: Vec::new(),
            is_frozen: [false; SERVERS],
            history: Vec::new(),
            words: Default::default(),
            loosest: [(0, 0); VALUES],
        };
        for place in 0..2 {
            world.add(place, 0, 0b11, (20, 4));
        }
        world
    }

    fn add(&mut self, place: usize, at: usize, bits: u8, rates: (u32, u32)) {
        let clock = self.clock.clone();
        let line = AdmissionQueue::new(10, clock.clone());
        let budgets = self.budgets.clone();
        let in_force = self::rates(rates.0, rates.1);
        let keys = Keys::new(
            "default",
            list(bits),
            server(at),
            in_force,
            budgets,
            line,
            clock,
        );
        keys.set_probes(PROBES);
        self.places[place] = Some(self.upstreams.len());
        self.upstreams.push(Upstream {
            keys,
            bits,
            server: at,
            rates,
            is_there: true,
            known: Default::default(),
            lates: Default::default(),
            shared: Default::default(),
        });
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    /// Time goes by, and whatever is due then ends at its moment.
    pub(super) fn pause(&mut self, millis: u64) {
        let then = self.now() + millis;
        loop {
            let due = self.under_way.iter().map(|one| one.due).enumerate();
            let next = due.min_by_key(|(_, due)| *due);
            let Some((at, due)) = next.filter(|(_, due)| *due <= then) else {
                break;
            };
            self.advance_to(due);
            match self.runs(at) {
                true => self.answered(at),
                // Nothing comes, for however long it is waited.
                false => self.give_up(at),
            }
        }
        self.advance_to(then);
    }

    fn advance_to(&self, then: u64) {
        let by = then.saturating_sub(self.now());
        self.clock.advance(Duration::from_millis(by));
    }

    /// Whether the server that one under way was sent to runs.
    fn runs(&self, at: usize) -> bool {
        !self.is_frozen[self.history[self.under_way[at].at].server]
    }

    /// One is answered: its server runs, and has read what was given up before.
    fn answered(&mut self, at: usize) {
        self.hear_answer(at);
        self.end(at);
    }

    fn hear_answer(&mut self, at: usize) {
        let now = self.now();
        let one = &mut self.under_way[at];
        one.grant.mark_answered();
        let (at, answers) = (one.at, &self.history[one.at]);
        let (upstream, server, from) = (answers.upstream, answers.server, answers.from);
        let arrived = self.given_up.extract_if(.., |late| {
            let sent = &self.history[late.at];
            sent.upstream == upstream && sent.server == server && late.since < from
        });
        let arrived: Vec<_> = arrived.map(|late| late.at).collect();
        assert!(!arrived.contains(&at));
        for at in arrived {
            if self.history[at].to.is_none() {
                self.arrives_soon(at, now);
            }
        }
    }

    /// One that was given up is counted about now, if at all.
    fn arrives_soon(&mut self, at: usize, now: u64) {
        let late = u64::try_from(ARRIVAL_LIMIT.as_millis()).unwrap();
        let sent = &mut self.history[at];
        (sent.to, sent.unanswered) = (Some(now + late), Some(now + slow()));
    }

    /// One has failed since its connection was ended by the server, or was
    /// never sent.
    fn fail(&mut self, at: usize) {
        self.under_way[at].grant.mark_resolved();
        self.end(at);
    }

    /// One that is under way ends, or is given up where nothing has come of it.
    fn end(&mut self, at: usize) -> usize {
        let one = self.under_way.swap_remove(at);
        let now = self.now();
        self.count_end(one.at, now);
        let sent = &self.history[one.at];
        let known = &mut self.upstreams[sent.upstream].known[sent.value];
        if let Some(rest) = &mut known.rest
            && rest.tried_by == Some(one.at)
        {
            *rest = Resting {
                until: now + 60_000,
                tried_by: None,
                ..*rest
            };
        }
        drop(one.grant);
        one.at
    }

    fn count_end(&mut self, at: usize, now: u64) {
        let sent = &mut self.history[at];
        sent.to = Some(now);
        let is_slow = now - sent.from >= 1_000;
        sent.unanswered = Some(if is_slow { now + slow() } else { now });
    }

    /// One is given up, and may be counted until its connection has ended.
    fn give_up(&mut self, at: usize) {
        let now = self.now();
        let connection = self.under_way[at].connection.clone();
        let at = self.end(at);
        if self.bounds(self.history[at].value) == (usize::MAX, usize::MAX) {
            // Nothing limits it: how long it counts does not matter.
            self.arrives_soon(at, now);
        } else {
            let sent = &mut self.history[at];
            (sent.to, sent.unanswered) = (None, None);
        }
        self.given_up.push(GivenUp {
            connection,
            at,
            since: now,
        });
    }

    /// The server ends a connection of its own accord, or since it is started
    /// anew: what was not read before is not read any more.
    fn close(&mut self, connection: &Connection) {
        let now = self.now();
        connection.ended();
        let of_it = |other: &Connection| other.is(connection);
        while let Some(at) = self.under_way.iter().position(|one| of_it(&one.connection)) {
            self.fail(at);
        }
        let ended = self.given_up.extract_if(.., |late| of_it(&late.connection));
        for at in ended.map(|late| late.at).collect::<Vec<_>>() {
            // It arrives no more, also where a while longer was allowed for it.
            if self.history[at].to.is_none_or(|to| to > now) {
                self.count_end(at, now);
            }
        }
        for upstream in &mut self.upstreams {
            for shared in upstream.shared.iter_mut().filter(|shared| of_it(shared)) {
                *shared = Connection::default();
            }
        }
    }

    /// A connection ends on which a request was given up; where its server runs.
    fn close_late(&mut self, at: usize) {
        let Some(late) = self.given_up.get(at % self.given_up.len().max(1)) else {
            return;
        };
        if !self.is_frozen[self.history[late.at].server] {
            let connection = late.connection.clone();
            self.close(&connection);
        }
    }

    /// A server is killed, and another one is started in its place.
    fn restart(&mut self, server: usize) {
        self.is_frozen[server] = false;
        let to_it = |at: &usize| self.history[*at].server == server;
        let under_way = self.under_way.iter().map(|one| (one.at, &one.connection));
        let given_up = self.given_up.iter().map(|late| (late.at, &late.connection));
        let all = under_way.chain(given_up).filter(|(at, _)| to_it(at));
        let all: Vec<_> = all.map(|(_, connection)| connection.clone()).collect();
        for connection in &all {
            self.close(connection);
        }
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

    /// The bounds that are in force: the stricter ones of those who have it.
    fn bounds(&self, value: usize) -> (usize, usize) {
        let having = self.upstreams.iter().filter(|one| one.has(value));
        let rates = having.map(|one| rates(one.rates.0, one.rates.1));
        let rates = rates.fold(Rates::UNLIMITED, Rates::stricter);
        let most = |rate: Rate| rate.limit().map_or(usize::MAX, |most| most as usize);
        (most(rates.per_minute), most(rates.per_second))
    }

    /// How many requests of an upstream are not answered, or were not for long.
    fn unanswered(&self, upstream: usize, value: usize) -> usize {
        let now = self.now();
        let counts = |sent: &&Sent| {
            let is_over = sent.unanswered.is_some_and(|until| until <= now);
            sent.upstream == upstream && sent.value == value && !is_over && sent.is_known(now)
        };
        self.history.iter().filter(counts).count()
    }

    /// Upstreams other than one that have a budget, or have requests under way
    /// that count in it.
    fn others(&self, upstream: usize, value: usize) -> usize {
        let is_under_way = |other| {
            let mut sent = self.history.iter();
            sent.any(|sent| {
                let is_its_own = sent.upstream == other && sent.value == value;
                is_its_own && sent.to.is_none() && sent.is_known(self.now())
            })
        };
        let others = self.upstreams.iter().enumerate();
        let others =
            others.filter(|(at, one)| *at != upstream && (one.has(value) || is_under_way(*at)));
        others.count()
    }

    /// Wishes to send one to an upstream, which would take so long; whether it
    /// may.
    pub(super) fn ask(
        &mut self,
        place: usize,
        wish: impl Into<RequestPriority>,
        takes: u64,
    ) -> Result<bool, TestCaseError> {
        let (now, wish) = (self.now(), wish.into());
        let Some(upstream) = self.places[place] else {
            return Ok(false);
        };
        let Ok(mut grant) = self.upstreams[upstream].keys.take(wish) else {
            return Ok(false);
        };
        let key = grant.header().map(|value| value.to_str().unwrap());
        let value = match key {
            Some(key) => KEYS.iter().position(|one| *one == key).unwrap(),
            None => KEYS.len() + self.upstreams[upstream].server,
        };
        prop_assert!(self.upstreams[upstream].has(value), "{value} is in service");
        let at = self.history.len();
        let asked = &self.upstreams[upstream];
        let server = asked.server;
        let connection = match at % 3 {
            0 => asked.shared[server].clone(),
            _ => Connection::default(),
        };
        grant.mark_sent(SendPath::known(connection.clone()), &asked.lates[server]);
        self.history.push(Sent {
            value,
            upstream,
            server,
            from: now,
            to: None,
            unanswered: None,
        });
        let due = now + takes;
        self.under_way.push(UnderWay {
            grant,
            connection,
            at,
            due,
        });

        let (minute, second) = self.bounds(value);
        let loosest = &mut self.loosest[value];
        *loosest = (loosest.0.max(minute), loosest.1.max(second));
        let in_minute = self.counted_within(value, 60_000);
        let in_second = self.counted_within(value, 1_000);
        prop_assert!(in_minute <= minute, "{in_minute} of {minute} in a minute");
        prop_assert!(in_second <= second, "{in_second} of {second} in a second");
        if minute < usize::MAX {
            let having = self.upstreams.iter().filter(|one| one.has(value));
            let probes = having.count() * PROBES as usize;
            let for_probes = (minute / 20).max(probes.min(minute / 4));
            let kept = match (wish.priority, wish.client) {
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
        }
        let others = self.others(upstream, value);
        if others > 0 && second < usize::MAX {
            let most = (second * 3 / (4 * others)).max(1);
            let unanswered = self.unanswered(upstream, value);
            prop_assert!(unanswered <= most, "{unanswered} of {most} unanswered");
        }

        for word in self.words[value].iter_mut().filter(|word| word.until > now) {
            prop_assert!(word.left > 0, "{:?} has nothing left", word.window);
            word.left -= 1;
        }
        let known = &mut self.upstreams[upstream].known[value];
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
        self.hear_answer(at);
        let one = &self.under_way[at];
        let Sent {
            value,
            upstream,
            from,
            ..
        } = self.history[one.at];
        // Those that were under way when it was sent, and those sent since.
        let others = self.counted(value, Some(from)) as u64 - 1;
        let others = others.max(self.after(one.at, value));
        let words = &mut self.words[value];
        let known = &mut self.upstreams[upstream].known[value];
        let tries = |rest: &Resting| rest.tried_by == Some(one.at);
        match said {
            Said::Left(said) => {
                words.retain(|held| held.until > now);
                if words.len() + said.len() > MOST_WORDS {
                    return;
                }
                one.grant.apply_report(&LimitReport {
                    limits: said.clone(),
                    ..LimitReport::default()
                });
                for word in said {
                    // What has no named end ends where its like says more.
                    let like = |held: &Held| held.window == word.window && !held.told;
                    words.retain(|held| word.end_is_known || !like(held));
                    let doubt = if word.valid_for > Duration::from_secs(1) {
                        others
                    } else {
                        0
                    };
                    words.push(Held {
                        left: word.remaining.saturating_sub(doubt),
                        until: now + u64::try_from(word.valid_for.as_millis()).unwrap(),
                        window: word.window,
                        told: word.end_is_known,
                    });
                }
            }
            Said::QuotaSpent(seconds) => {
                one.grant.apply_report(&LimitReport {
                    quota_spent: Some(Duration::from_secs(*seconds)),
                    ..LimitReport::default()
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
                one.grant.throttle(Duration::from_secs(*seconds));
                known.cool_until = known.cool_until.max(now + seconds * 1_000);
            }
            Said::Refused => {
                one.grant.mark_refused(StatusCode::FORBIDDEN);
                if value < KEYS.len() && known.rest.as_ref().is_none_or(tries) {
                    known.rest = Some(Resting {
                        until: now + 60_000,
                        tried_by: None,
                        refused: true,
                    });
                }
            }
            Said::Accepted => {
                one.grant.mark_accepted();
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

    fn reload(&mut self, place: usize, fate: Fate, bits: u8, rates: (u32, u32)) {
        let now = self.now();
        let Some(at) = self.places[place] else {
            match fate {
                Fate::Here => self.add(place, 0, bits, rates),
                Fate::Elsewhere => self.add(place, 1, bits, rates),
                Fate::Gone => {}
            }
            return;
        };
        let upstream = &mut self.upstreams[at];
        let mut stays = [false; VALUES];
        match fate {
            Fate::Here => stays = std::array::from_fn(|value| upstream.has(value)),
            Fate::Elsewhere => {
                upstream.keys = upstream.keys.elsewhere();
                upstream.server = 1 - upstream.server;
            }
            Fate::Gone => {
                upstream.keys.retire();
                // What is under way holds it no longer than it takes.
                let clock = self.clock.clone();
                let (line, budgets) = (AdmissionQueue::new(1, clock.clone()), Budgets::new());
                upstream.keys = Keys::new(
                    "default",
                    vec![],
                    server(0),
                    Rates::UNLIMITED,
                    budgets,
                    line,
                    clock,
                );
                upstream.is_there = false;
                self.places[place] = None;
                return;
            }
        }
        (upstream.bits, upstream.rates) = (bits, rates);
        let in_force = self::rates(rates.0, rates.1);
        upstream
            .keys
            .replace(list(bits), server(upstream.server), in_force);
        for (value, stays) in stays.into_iter().enumerate() {
            let is_there = upstream.has(value);
            let known = &mut upstream.known[value];
            if !is_there {
                known.away.get_or_insert(now);
                continue;
            }
            // One that is away for long is forgotten; whoever brings a key back
            // that was refused wants it tried.
            let away = known.away.take().map(|since| now - since);
            let long = REMEMBERED.as_millis() as u64;
            let is_refused = known.rest.as_ref().is_some_and(|rest| rest.refused);
            if away.is_some_and(|away| away >= long) || is_refused && !stays {
                known.rest = None;
            }
        }
    }

    pub(super) fn step(&mut self, step: &Step) -> Outcome {
        let there = self.under_way.len();
        match step {
            Step::Pause(millis) => self.pause(*millis),
            Step::Ask(place, wish, takes) => {
                for takes in takes {
                    self.ask(*place, *wish, *takes)?;
                }
            }
            Step::Fail(at) if there > 0 => self.fail(at % there),
            Step::Answer(at, said) if there > 0 && self.runs(at % there) => {
                self.answer(at % there, said);
            }
            Step::GiveUp(at) if there > 0 => self.give_up(at % there),
            Step::Retry(at, takes) if there > 0 => {
                let upstream = self.history[self.under_way[at % there].at].upstream;
                self.give_up(at % there);
                let place = self.places.iter().position(|one| *one == Some(upstream));
                if let Some(place) = place {
                    self.ask(place, Priority::Miss, *takes)?;
                }
            }
            Step::Reload(place, fate, keys, minute, second) => {
                self.reload(*place, *fate, *keys, (*minute, *second));
            }
            Step::Freeze(server) => self.is_frozen[*server] = true,
            Step::Thaw(server) => self.is_frozen[*server] = false,
            Step::Close(at) => self.close_late(*at),
            Step::Restart(server) => self.restart(*server),
            Step::Fail(_) | Step::GiveUp(_) | Step::Answer(..) | Step::Retry(..) => {}
        }
        Ok(())
    }

    /// Everything ends, whether answered or given up.
    pub(super) fn end_all(&mut self) {
        for server in 0..SERVERS {
            self.restart(server);
        }
        assert!(self.under_way.is_empty() && self.given_up.is_empty());
        let lates = self.upstreams.iter().flat_map(|one| &one.lates);
        assert!(lates.into_iter().all(|lates| lates.len() == 0));
        // What an answer has shown to arrive has arrived by then.
        self.clock.advance(ARRIVAL_LIMIT);
    }

    /// What is told to who is refused is true where nobody else asks.
    pub(super) fn waits_are_true(&mut self) -> Outcome {
        self.end_all();
        let own = Priority::ALL.map(RequestPriority::own);
        let client = RequestPriority::of(Client::V4(0), Priority::Miss);
        for at in self.places.into_iter().flatten() {
            let keys = self.upstreams[at].keys.clone();
            for wish in own.into_iter().chain([client]) {
                // It is over at once, and has told nothing; some have no end.
                let mut denied = (0..200).map_while(|_| match keys.take(wish) {
                    Ok(_over) => Some(None),
                    Err(denied) => Some(Some(denied)),
                });
                let Some(Denied::For(wait)) = denied.find_map(|denied| denied) else {
                    continue;
                };
                prop_assert!(!wait.is_zero());
                self.clock.advance(wait);
                let taken = keys.take(wish).err();
                prop_assert!(taken.is_none(), "{wish:?} after {wait:?}: {taken:?}");
            }
        }
        Ok(())
    }
}

/// How long a request counts as unanswered that was slow, or was given up.
fn slow() -> u64 {
    u64::try_from((ARRIVAL_LIMIT + SECOND_WINDOW).as_millis()).unwrap()
}
