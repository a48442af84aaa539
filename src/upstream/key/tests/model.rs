//! A property: no key gets more requests than its budget allows, whatever requests,
//! failures, reloads and pauses there are, and whenever the upstream counts.
//!
//! A request counts from when it is sent to its end; a server may be frozen in between,
//! and the upstream may count it at any moment of that time. When a request is permitted,
//! at most as many count as the bound then in force allows. Hence no window by the
//! upstream's clock holds more than the loosest bound that was in force.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use super::*;

const VALUES: [&str; 2] = ["first-key", "second-key"];
const HOSTS: [&str; 2] = ["http://one", "http://other"];
const UPSTREAMS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    /// An upstream sends so many requests, probes or not, to a host.
    Send(usize, usize, bool, usize),
    /// One request ends: it was answered, its connection was closed, or two minutes are over.
    End(usize),
    /// All requests end.
    EndAll,
    /// A request turns out not to have been sent.
    Unsent(usize),
    /// An answer asks for a pause of so many seconds.
    CoolDown(usize, u64),
    /// A reload: an upstream's keys as bits, 0 to remove it, and its rates.
    Reload(usize, u8, (u32, u32)),
    /// A reload that is rejected.
    Rejected(u8, (u32, u32)),
}

fn step() -> impl Strategy<Value = Step> {
    let rates = || {
        (
            prop_oneof![1 => Just(0), 9 => 4_u32..30],
            prop_oneof![1 => Just(0), 9 => 2_u32..7],
        )
    };
    prop_oneof![
        6 => (0_u64..400).prop_map(Step::Pause),
        2 => (900_u64..1_200).prop_map(Step::Pause),
        2 => (0_u64..70_000).prop_map(Step::Pause),
        1 => (0_u64..4_000_000).prop_map(Step::Pause),
        12 => (0..UPSTREAMS, 0..HOSTS.len(), any::<bool>(), 1_usize..8)
            .prop_map(|(upstream, host, is_probe, count)| Step::Send(upstream, host, is_probe, count)),
        8 => any::<usize>().prop_map(Step::End),
        2 => Just(Step::EndAll),
        2 => any::<usize>().prop_map(Step::Unsent),
        1 => (any::<usize>(), 1_u64..90).prop_map(|(at, time)| Step::CoolDown(at, time)),
        2 => (0..UPSTREAMS, 0_u8..4, rates()).prop_map(|(at, bits, rates)| Step::Reload(at, bits, rates)),
        1 => (1_u8..4, rates()).prop_map(|(bits, rates)| Step::Rejected(bits, rates)),
    ]
}

/// A request that was sent, in milliseconds; `to` while it may still reach the upstream.
struct Sent {
    key: usize,
    from: u64,
    to: Option<u64>,
}

/// An upstream's keys, which of them, and their rates.
type Configured = (Arc<Keys>, u8, (u32, u32));

struct Model {
    clock: Clock,
    begun: Moment,
    budgets: Arc<Budgets>,
    shared: Arc<Shared>,
    upstreams: [Option<Configured>; UPSTREAMS],
    under_way: Vec<(usize, Charge)>,
    sent: Vec<Sent>,
    /// By key: the bounds in force, and the loosest ones so far.
    bounds: [[usize; 2]; VALUES.len()],
    loosest: [[usize; 2]; VALUES.len()],
}

fn list(bits: u8) -> String {
    let chosen = (0..VALUES.len()).filter(|at| bits & 1 << at != 0);
    chosen.map(|at| VALUES[at]).collect::<Vec<_>>().join(",")
}

impl Model {
    fn new(replicas: u32) -> Self {
        let clock = Clock::manual();
        let shared = super::replicas(replicas, &clock);
        let mut model = Self {
            begun: clock.now(),
            budgets: Arc::new(Budgets::new(Some(shared.clone()), Spent::default())),
            shared,
            clock,
            upstreams: Default::default(),
            under_way: Vec::new(),
            sent: Vec::new(),
            bounds: [[usize::MAX; 2]; VALUES.len()],
            loosest: [[0; 2]; VALUES.len()],
        };
        model.reload(0, 3, (20, 4));
        model.reload(1, 1, (12, 3));
        model
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    fn keys(&self, bits: u8, rates: (u32, u32)) -> Arc<Keys> {
        let keys = keys_at(&list(bits), rates, &HOSTS, &self.budgets, &self.clock);
        keys.set_probes(2);
        keys
    }

    fn reload(&mut self, at: usize, bits: u8, rates: (u32, u32)) {
        let hosts: Vec<_> = HOSTS.iter().map(|name| host(name)).collect();
        let configured = ApiKey::list(&list(bits)).unwrap_or_default();
        self.upstreams[at] = match (self.upstreams[at].take(), bits) {
            (None, 0) => None,
            (Some((keys, ..)), 0) => {
                keys.retire();
                None
            }
            (None, _) => Some((self.keys(bits, rates), bits, rates)),
            (Some((keys, ..)), _) => {
                keys.replace(configured, Rates::of(rates.0, rates.1), hosts);
                Some((keys, bits, rates))
            }
        };
        for key in 0..VALUES.len() {
            let users = self.upstreams.iter().flatten();
            let rates = users.filter(|(_, bits, _)| bits & 1 << key != 0);
            let rates = rates.map(|(.., rates)| Rates::of(rates.0, rates.1));
            // Without a user, the last bounds stay in force.
            if let Some(rates) = rates.reduce(Rates::stricter) {
                let parts = self.shared.split(permits::PoolLimits {
                    per_minute: rates.per_minute.limit(),
                    per_second: rates.per_second.limit(),
                });
                let limits = [parts.floor.per_minute, parts.floor.per_second];
                self.bounds[key] =
                    limits.map(|limit| limit.map_or(usize::MAX, |most| most as usize));
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let count = self.under_way.len();
        match step {
            Step::Pause(millis) => self.clock.advance(Duration::from_millis(*millis)),
            Step::Send(upstream, host, is_probe, count) => {
                for _ in 0..*count {
                    self.send(*upstream, HOSTS[*host], *is_probe)?;
                }
            }
            Step::End(at) if count > 0 => self.end(at % count),
            Step::EndAll => {
                while !self.under_way.is_empty() {
                    self.end(0);
                }
            }
            Step::Unsent(at) if count > 0 => {
                let (sent, mut charge) = self.under_way.remove(at % count);
                charge.is_sent = false;
                // It never counts.
                self.sent[sent].to = Some(0);
                self.sent[sent].from = 0;
                self.sent[sent].key = usize::MAX;
            }
            Step::CoolDown(at, seconds) if count > 0 => {
                self.under_way[at % count].1.cool_down(*seconds);
            }
            Step::Reload(at, bits, rates) => self.reload(*at, *bits, *rates),
            Step::Rejected(bits, rates) => {
                drop(self.keys(*bits, *rates));
                // A key that only it has is left with its bounds.
                for key in 0..VALUES.len() {
                    let users = self.upstreams.iter().flatten();
                    let is_used = users.into_iter().any(|(_, bits, _)| bits & 1 << key != 0);
                    if bits & 1 << key != 0 && !is_used {
                        self.bounds[key] = [usize::MAX; 2];
                    }
                }
            }
            Step::End(_) | Step::Unsent(_) | Step::CoolDown(..) => {}
        }
        Ok(())
    }

    fn end(&mut self, at: usize) {
        let (sent, charge) = self.under_way.remove(at);
        drop(charge);
        self.sent[sent].to = Some(self.now());
    }

    fn send(&mut self, upstream: usize, to: &str, is_probe: bool) -> Result<(), TestCaseError> {
        let Some((keys, ..)) = &self.upstreams[upstream] else {
            return Ok(());
        };
        let Ok(mut charge) = take(keys, to, is_probe) else {
            return Ok(());
        };
        charge.is_sent = true;
        let api = charge.key.api.as_ref().unwrap();
        let key = api.value().to_str().unwrap().to_owned();
        let (key, now) = (
            VALUES.iter().position(|value| *value == key).unwrap(),
            self.now(),
        );
        self.under_way.push((self.sent.len(), charge));
        self.sent.push(Sent {
            key,
            from: now,
            to: None,
        });
        for (span, (most, loosest)) in [60_000, 1_000]
            .into_iter()
            .zip(self.bounds[key].iter().zip(&mut self.loosest[key]))
        {
            *loosest = (*loosest).max(*most);
            let counts = |sent: &&Sent| sent.key == key && sent.to.is_none_or(|to| to + span > now);
            let counted = self.sent.iter().filter(counts).count();
            prop_assert!(counted <= *most, "{counted} of {most} in {span} ms");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_key_exceeds_its_budget(
        steps in vec(step(), 1..120),
        shares in vec(0_u64..=100, 1..40),
        replicas in 1_u32..3,
    ) {
        let mut model = Model::new(replicas);
        for step in &steps {
            model.step(step)?;
        }
        model.step(&Step::Pause(200_000))?;
        model.step(&Step::EndAll)?;
        for key in 0..VALUES.len() {
            let sent = model.sent.iter().zip(shares.iter().cycle());
            let counted = sent.filter(|(sent, _)| sent.key == key).map(|(sent, share)| {
                sent.from + (sent.to.unwrap() - sent.from) * share / 100
            });
            let mut counted: Vec<_> = counted.collect();
            counted.sort_unstable();
            for (most, span) in model.loosest[key].into_iter().zip([60_000, 1_000]) {
                for window in counted.windows(most.saturating_add(1)) {
                    prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms");
                }
            }
        }
    }
}

/// The property is not empty: the whole budget is used.
#[test]
fn the_whole_budget_can_be_used() {
    let mut model = Model::new(1);
    for _ in 0..60 {
        model.step(&Step::Send(0, 0, true, 6)).unwrap();
        model.step(&Step::EndAll).unwrap();
        model.step(&Step::Pause(1_000)).unwrap();
    }
    let used = [0, 1].map(|key| model.sent.iter().filter(|sent| sent.key == key).count());
    assert_eq!(used, [12, 20]);
}
