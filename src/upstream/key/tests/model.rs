//! A property: no key gets more requests than its budget allows, whatever requests,
//! failures, reloads and pauses there are, and whenever the upstream counts.
//!
//! A request counts from when it is sent to its end; a server may be frozen in between,
//! and the upstream may count it at any moment of that time. When a request is permitted,
//! at most as many count as the bound then in force allows. Hence no window by the
//! upstream's clock holds more than the loosest bound that was in force.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use super::*;
use crate::upstream::permit::Permit;

const VALUES: [&str; 2] = ["first-key", "second-key"];
const ENDPOINTS: usize = 2;
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
        12 => (0..UPSTREAMS, 0..ENDPOINTS, any::<bool>(), 1_usize..8)
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

/// An upstream's keys as bits, 0 where there is none, and its rates.
type Configured = (u8, (u32, u32));

struct Model {
    clock: Clock,
    begun: Moment,
    shared: Arc<Shared>,
    configured: [Configured; UPSTREAMS],
    upstreams: Arc<Upstreams>,
    under_way: Vec<(usize, Permit)>,
    sent: Vec<Sent>,
    /// By key: the bounds in force, and the loosest ones so far.
    bounds: [[usize; 2]; VALUES.len()],
    loosest: [[usize; 2]; VALUES.len()],
}

/// The settings and keys of upstreams, each with two hosts.
fn settings(configured: &[Configured]) -> (Vec<Settings>, ProviderKeys) {
    let (mut text, mut own) = (String::new(), BTreeMap::new());
    let rate = |limit: u32| match limit {
        0 => "\"unlimited\"".to_owned(),
        limit => limit.to_string(),
    };
    for (at, (bits, (minute, second))) in configured.iter().enumerate() {
        let chosen = (0..VALUES.len()).filter(|key| bits & 1 << key != 0);
        let chosen: Vec<_> = chosen.map(|key| VALUES[key]).collect();
        let Ok(keys) = ApiKey::list(&chosen.join(",")) else {
            continue;
        };
        own.insert(format!("u{at}").into(), keys);
        text.push_str(&format!(
            "[upstreams.u{at}]\nurl = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\"]\n\
             max_in_flight = 1000\nrequests_per_minute = {}\nrequests_per_second = {}\n\
             [[route]]\nname = \"u{at}\"\npath = \"/u{at}\"\nupstream = \"u{at}\"\n",
            rate(*minute),
            rate(*second)
        ));
    }
    let shared = Vec::new();
    (
        Config::parse("p", &format!("builtin_routes = false\n{text}"))
            .unwrap()
            .upstreams,
        ProviderKeys { shared, own },
    )
}

impl Model {
    fn new(replicas: u32) -> Self {
        let clock = Clock::manual();
        let shared = super::replicas(replicas, &clock);
        let configured = [(3, (20, 4)), (1, (12, 3)), (0, (0, 0))];
        let budgets = Arc::new(Budgets::new(Some(shared.clone()), Spent::default()));
        let (all, keys) = settings(&configured);
        let upstreams = Upstreams::new(&all, &keys, None, &budgets, &clock, None);
        let upstreams = upstreams.unwrap();
        upstreams.take_over();
        let mut model = Self {
            begun: clock.now(),
            shared,
            clock,
            configured,
            upstreams,
            under_way: Vec::new(),
            sent: Vec::new(),
            bounds: [[usize::MAX; 2]; VALUES.len()],
            loosest: [[0; 2]; VALUES.len()],
        };
        model.probe();
        model
    }

    /// Keeps budget for probes, and notes the bounds.
    fn probe(&mut self) {
        for (_, upstream) in self.upstreams.iter() {
            upstream.set_tips(Vec::new(), 2, Some(Duration::from_secs(10)));
        }
        self.upstreams.take_over();
        for key in 0..VALUES.len() {
            let users = self
                .configured
                .iter()
                .filter(|(bits, _)| bits & 1 << key != 0);
            let limits = users.map(|(_, rates)| limits(*rates));
            // Without a user, the last bounds stay in force.
            if let Some(limits) = limits.reduce(Limits::stricter) {
                let parts = self.shared.split(limits);
                let limits = [parts.floor.per_minute, parts.floor.per_second];
                self.bounds[key] =
                    limits.map(|limit| limit.map_or(usize::MAX, |most| most as usize));
            }
        }
    }

    fn reload(&mut self, at: usize, new: Configured, is_used: bool) {
        let mut configured = self.configured;
        configured[at] = new;
        let (all, keys) = settings(&configured);
        let (before, budgets) = (Some(&*self.upstreams), &self.upstreams.first().keys.budgets);
        let next = Upstreams::new(&all, &keys, before, budgets, &self.clock, None);
        let Ok(next) = next else {
            return;
        };
        if is_used {
            next.take_over();
            (self.upstreams, self.configured) = (next, configured);
            self.probe();
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let count = self.under_way.len();
        match step {
            Step::Pause(millis) => self.clock.advance(Duration::from_millis(*millis)),
            Step::Send(upstream, host, is_probe, count) => {
                for _ in 0..*count {
                    self.send(*upstream, *host, *is_probe)?;
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
                charge.mark_sent(false);
                // It never counts.
                self.sent[sent].to = Some(0);
                self.sent[sent].from = 0;
                self.sent[sent].key = usize::MAX;
            }
            Step::CoolDown(at, seconds) if count > 0 => {
                let asked = &self.under_way[at % count].1.asked;
                let until = self.clock.now() + Duration::from_secs(*seconds);
                asked.key.key.state().cool_down(&asked.endpoint.host, until);
            }
            Step::Reload(at, bits, rates) => self.reload(*at, (*bits, *rates), true),
            Step::Rejected(bits, rates) => self.reload(0, (*bits, *rates), false),
            Step::End(_) | Step::Unsent(_) | Step::CoolDown(..) => {}
        }
        Ok(())
    }

    fn end(&mut self, at: usize) {
        let (sent, charge) = self.under_way.remove(at);
        drop(charge);
        self.sent[sent].to = Some(self.now());
    }

    fn send(&mut self, upstream: usize, to: usize, is_probe: bool) -> Result<(), TestCaseError> {
        let Some(upstream) = self.upstreams.named(&format!("u{upstream}")) else {
            return Ok(());
        };
        let priority = if is_probe {
            Priority::Probe
        } else {
            Priority::Miss
        };
        let request = RequestPriority::own(priority);
        let Ok(mut charge) = upstream.permit(request, Some(to)) else {
            return Ok(());
        };
        charge.mark_sent(true);
        let key = charge.header().unwrap().to_str().unwrap().to_owned();
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
