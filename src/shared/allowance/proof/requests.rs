//! The requests of clients, from their wait for admission to the upstream's answer.

use super::upstream::Time;
use super::window::ARRIVAL_LIMIT;
use super::world::{Event, SHORTEST_ROUND, World};
use crate::shared::allowance::PERMIT_AGE;
use crate::shared::allowance::rules::{Rule, has};
use std::time::Duration;

impl World {
    pub(super) fn want(&mut self, start: usize) {
        let burst = match self.dice.percent(3) {
            true => self.dice.between(1, 20) as usize,
            false => 1,
        };
        let Some(every) = self.with(start, |process, _| {
            process.wait_in_queue(burst);
            process.every
        }) else {
            return;
        };
        let next = match self.weather.is_even {
            true => every,
            false => self.dice.between(0, 2 * every),
        };
        self.after(next, Event::Want(start));
        self.take_all(start);
    }

    /// Takes as many requests as there are clients waiting, and the budget allows.
    pub(super) fn take_all(&mut self, start: usize) {
        let now = self.now;
        while let Some(process) = self.process(start)
            && process.waiting > 0
        {
            match process.take(now) {
                Ok(()) => {
                    let permitted = process.now(now);
                    let delay = match self.dice.percent(self.weather.slow_writes) {
                        true => self.dice.ms(0, 1500),
                        false => self.dice.ms(0, 5),
                    };
                    self.after(delay, Event::Send(start, permitted));
                }
                Err(wait) => {
                    let next = now + (wait.as_micros() as Time).max(100);
                    let is_sooner = process.next_try <= now || next < process.next_try;
                    let hurry = now.max(process.last_round + SHORTEST_ROUND);
                    let is_new = process.waiting == 1 && hurry < process.next_round;
                    if is_sooner {
                        process.next_try = next;
                        self.at(next, Event::Try(start));
                    }
                    if is_new && let Some(process) = self.process(start) {
                        process.next_round = hurry;
                        self.at(hurry, Event::Round(start));
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn send(&mut self, start: usize, permitted: Duration) {
        let now = self.now;
        let is_old = self.with(start, |process, _| {
            let age = process.now(now).saturating_sub(permitted);
            let is_old = age > PERMIT_AGE && has(Rule::PermitsAge);
            if is_old {
                process.budget.end(process.window_now(now));
                process.wait_in_queue(1);
            }
            is_old
        });
        if is_old == Some(true) {
            return self.take_all(start);
        }
        let (fast, slow) = self.weather.latency;
        let latency = match self.dice.percent(self.weather.slow_answers) {
            true => self.dice.between(0, 2 * self.longest),
            false => self.dice.ms(fast, slow),
        };
        let is_first = self.starts[start].0 == 0;
        let prompt = self.weather.prompt[usize::from(!is_first)];
        if latency <= self.longest {
            let received = match self.dice.percent(prompt) {
                true => latency / 10,
                false => self.dice.between(latency / 2, latency),
            };
            self.after(received, Event::Receive(start));
            self.after(latency, Event::Answer(start));
        } else {
            let last = self.longest + ARRIVAL_LIMIT.as_micros() as Time;
            let received = match self.dice.percent(prompt) {
                true => self.dice.between(0, last),
                false => self.dice.between(last / 2, last),
            };
            self.after(received, Event::Receive(start));
            self.after(self.longest, Event::GiveUp(start));
        }
    }

    /// The request of a killed process arrives soon after, or not at all.
    pub(super) fn receive(&mut self, start: usize) {
        let limit = ARRIVAL_LIMIT.as_micros() as Time;
        let killed = self.starts[start].1;
        if killed.is_none_or(|killed| self.now <= killed + limit) {
            self.upstream.receive(self.now);
        }
    }
}
