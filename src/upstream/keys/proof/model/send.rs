//! Sending a request, and the checks of each one that [`Keys`] permits.
//!
//! [`Keys`]: crate::upstream::keys::Keys

use proptest::prelude::prop_assert;
use proptest::test_runner::TestCaseError;

use super::{BudgetModel, KEYS, ModelRequest, Outcome, PROBES, RequestUnderWay, rates};
use crate::upstream::admission::{Priority, Rate, Rates, RequestPriority};
use crate::upstream::connection::{Connection, SendPath};

impl BudgetModel {
    /// Sends a request that takes `duration` milliseconds, if [`Keys`] permits it.
    /// Returns whether it did.
    ///
    /// [`Keys`]: crate::upstream::keys::Keys
    pub(in super::super) fn send(
        &mut self,
        entry: usize,
        priority: impl Into<RequestPriority>,
        duration: u64,
    ) -> Result<bool, TestCaseError> {
        let (now, priority) = (self.now(), priority.into());
        let Some(upstream) = self.entries[entry] else {
            return Ok(false);
        };
        let sender = &self.upstreams[upstream];
        let Ok(mut permit) = sender.keys.take(priority) else {
            return Ok(false);
        };
        let server = sender.server;
        let budget = match permit.header() {
            Some(value) => {
                let key = value.to_str().unwrap();
                KEYS.iter().position(|one| *one == key).unwrap()
            }
            None => KEYS.len() + server,
        };
        prop_assert!(sender.has(budget), "{budget} is configured");
        let at = self.history.len();
        let connection = match at % 3 {
            0 => sender.shared[server].clone(),
            _ => Connection::default(),
        };
        permit.mark_sent(
            SendPath::known(connection.clone()),
            &sender.given_up[server],
        );
        self.history.push(ModelRequest {
            budget,
            upstream,
            server,
            from: now,
            to: None,
            unanswered: None,
        });
        self.under_way.push(RequestUnderWay {
            permit,
            connection,
            at,
            due: now + duration,
        });
        self.check_bounds(budget, priority)?;
        self.check_share(upstream, budget)?;
        self.check_reports(budget)?;
        self.check_key(upstream, budget, at)?;
        Ok(true)
    }

    /// Checks the rates in force, and what is reserved for requests of higher priority.
    fn check_bounds(&mut self, budget: usize, priority: RequestPriority) -> Outcome {
        let (minute, second) = self.bounds(budget);
        let loosest = &mut self.loosest[budget];
        *loosest = (loosest.0.max(minute), loosest.1.max(second));
        let in_minute = self.counted_within(budget, 60_000);
        let in_second = self.counted_within(budget, 1_000);
        prop_assert!(in_minute <= minute, "{in_minute} of {minute} in a minute");
        prop_assert!(in_second <= second, "{in_second} of {second} in a second");
        if minute == usize::MAX {
            return Ok(());
        }
        let owners = self.upstreams.iter().filter(|one| one.has(budget));
        let probes = owners.count() * PROBES as usize;
        let for_probes = (minute / 20).max(probes.min(minute / 4));
        let reserved = match (priority.priority, priority.client) {
            (Priority::Probe, _) => 0,
            (Priority::Revalidation, None) => for_probes + minute / 10,
            // A client with few requests may use what is reserved for such clients.
            (Priority::Miss, None) | (Priority::Miss | Priority::Revalidation, Some(_)) => {
                for_probes
            }
            (Priority::LookAhead, _) => minute / 2,
        };
        let left = minute - in_minute;
        prop_assert!(
            left >= reserved,
            "{priority:?} leaves {left} of {reserved} reserved"
        );
        Ok(())
    }

    /// Checks that an upstream leaves a share of each second to the others.
    fn check_share(&self, upstream: usize, budget: usize) -> Outcome {
        let (_, second) = self.bounds(budget);
        let others = self.others(upstream, budget);
        if others > 0 && second < usize::MAX {
            let most = (second * 3 / (4 * others)).max(1);
            let unanswered = self.unanswered(upstream, budget);
            prop_assert!(unanswered <= most, "{unanswered} of {most} unanswered");
        }
        Ok(())
    }

    /// Counts the request in each reported limit in force.
    fn check_reports(&mut self, budget: usize) -> Outcome {
        let now = self.now();
        let reports = self.reports[budget].iter_mut();
        for report in reports.filter(|report| report.until > now) {
            prop_assert!(report.left > 0, "{:?} has nothing left", report.window);
            report.left -= 1;
        }
        Ok(())
    }

    /// Checks that the key is usable, by one request at a time if it was refused.
    fn check_key(&mut self, upstream: usize, budget: usize, at: usize) -> Outcome {
        let now = self.now();
        let state = &mut self.upstreams[upstream].states[budget];
        prop_assert!(state.cooldown_until <= now, "the key is in cooldown");
        if let Some(suspension) = &mut state.suspension {
            prop_assert!(suspension.until <= now, "the key is suspended");
            prop_assert!(suspension.tried_by.is_none(), "another request tries it");
            suspension.tried_by = Some(at);
        }
        Ok(())
    }

    /// How many requests of a budget the upstream may have counted since a moment.
    pub(super) fn counted(&self, budget: usize, since: Option<u64>) -> usize {
        let counts = |sent: &&ModelRequest| {
            let ended = sent.to.is_some_and(|to| Some(to) <= since);
            sent.budget == budget && !ended
        };
        self.history.iter().filter(counts).count()
    }

    fn counted_within(&self, budget: usize, span: u64) -> usize {
        self.counted(budget, self.now().checked_sub(span))
    }

    /// The bounds in force, per minute and per second: the strictest of the upstreams
    /// that use the budget.
    pub(super) fn bounds(&self, budget: usize) -> (usize, usize) {
        let owners = self.upstreams.iter().filter(|one| one.has(budget));
        let rates = owners.map(|one| rates(one.rates));
        let rates = rates.fold(Rates::UNLIMITED, Rates::stricter);
        let most = |rate: Rate| rate.limit().map_or(usize::MAX, |most| most as usize);
        (most(rates.per_minute), most(rates.per_second))
    }

    /// How many requests of an upstream count as unanswered.
    fn unanswered(&self, upstream: usize, budget: usize) -> usize {
        let now = self.now();
        let counts = |sent: &&ModelRequest| {
            let is_over = sent.unanswered.is_some_and(|until| until <= now);
            sent.upstream == upstream
                && sent.budget == budget
                && !is_over
                && sent.is_remembered(now)
        };
        self.history.iter().filter(counts).count()
    }

    /// The number of other upstreams that use a budget, or have requests under way
    /// that count in it.
    fn others(&self, upstream: usize, budget: usize) -> usize {
        let now = self.now();
        let is_under_way = |other| {
            let mut sent = self.history.iter();
            sent.any(|sent| {
                let is_its_own = sent.upstream == other && sent.budget == budget;
                is_its_own && sent.to.is_none() && sent.is_remembered(now)
            })
        };
        let all = self.upstreams.iter().enumerate();
        let others =
            all.filter(|(at, one)| *at != upstream && (one.has(budget) || is_under_way(*at)));
        others.count()
    }
}
