//! The reports of processes, and the engine's replies.

use std::rc::Rc;

use super::upstream::Time;
use super::world::{Event, ROUND, World};
use crate::shared::allowance::{Reply, Report};

impl World {
    pub(super) fn round(&mut self, start: usize) {
        let (now, nonce) = (self.now, self.dice.next());
        let Some(process) = self.process(start) else {
            return;
        };
        if now < process.next_round {
            return;
        }
        (process.last_round, process.next_round) = (now, now + ROUND);
        let demand = process.demand(now);
        let own = process.now(now);
        let report = Rc::new(process.machine.report(own, &demand, nonce));
        let (node, cut) = (process.node, process.cut_from > now);
        let held_back = process.cut_from;
        self.after(ROUND, Event::Round(start));
        self.after(self.timeout, Event::Timeout(start, report.sequence));
        self.take_all(start);
        let copies = 1 + usize::from(self.dice.percent(self.weather.repeated));
        for _ in 0..copies {
            let delay = self.delay();
            let arrives = match cut {
                false => self.now + delay,
                // What was sent into a cut may be sent again when it ends.
                true if self.dice.percent(self.weather.resent) => held_back + delay,
                true => continue,
            };
            if !self.dice.percent(self.weather.lost) {
                self.at(arrives, Event::Report(start, node, Rc::clone(&report)));
            }
        }
    }

    /// How long a message takes.
    fn delay(&mut self) -> Time {
        if self.dice.percent(self.weather.late) {
            return self.dice.seconds(0, 200);
        }
        match self.slow_until > self.now {
            true => self.dice.ms(5, 3000),
            false => self
                .dice
                .between(self.weather.delay.0, self.weather.delay.1),
        }
    }

    pub(super) fn report_arrives(&mut self, start: usize, node: usize, report: Rc<Report>) {
        let stopped = self.engines.nodes[node].stopped_until;
        if stopped > self.now {
            let again = stopped + self.dice.ms(0, 2);
            return self.at(again, Event::Report(start, node, report));
        }
        let Some(reply) = self.engines.report(node, self.now, &report) else {
            return;
        };
        let now = self.now;
        let is_cut = self.with(start, |process, _| process.cut_to > now);
        if is_cut != Some(false) || self.dice.percent(self.weather.lost) {
            return;
        }
        let delay = self.delay();
        self.after(delay, Event::Reply(start, report.sequence, reply));
    }

    pub(super) fn reply_arrives(&mut self, start: usize, sequence: u64, reply: Reply) {
        self.with(start, |process, now| {
            process.machine.reply(process.now(now), sequence, reply);
        });
        self.take_all(start);
    }
}
