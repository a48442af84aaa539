//! What goes wrong in the simulated world.

use super::process::Process;
use super::upstream::{SECOND, Time};
use super::world::{Event, World};

/// Something that goes wrong, or ends. Numbers are seconds unless they are replicas or
/// servers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// The rows are deleted.
    Flush,
    /// The primary starts anew, empty or from a dump.
    Restart,
    /// A copy becomes the primary. It may lack the last writes.
    Failover,
    /// A copy becomes the primary for a moment, and the primary then again, with the
    /// copy's rows.
    SwapBack,
    /// A copy becomes the primary, and the old one goes on for some processes.
    Split { back: bool },
    /// The end of a split: all follow this server.
    Heal(usize),
    /// A copy begins to follow another server, during a split.
    Promote(usize, usize, Time),
    /// A server follows another one.
    Follow(usize, usize),
    /// A process reports to another server from now on.
    Move(usize, usize),
    /// The engine answers nothing for a while.
    Down,
    /// The engine answers nothing any more.
    Gone,
    /// The engine is stopped for a while, and answers everything afterwards.
    Stop,
    /// Messages take long for a while.
    Slow,
    /// A copy is not reachable for a while.
    LoseCopy,
    /// The clock of the primary is set.
    SetClock,
    /// A process is cut off from the engine, in one or both directions.
    Cut { at_least: u64, at_most: u64 },
    /// A process is stopped for a while.
    Pause,
    /// A process's machine is suspended for a while.
    Suspend,
    /// A process is killed and starts again, with or without its state.
    Kill { knows: u64 },
    /// The requests of clients move to other replicas.
    MoveDemand,
    /// One replica gets many requests at once.
    Burst,
    /// This replica gets many requests at once.
    BurstAt(usize),
    /// This replica's process is cut off for a time between two.
    CutAt(usize, u64, u64),
    /// No reply reaches this replica's process for a time between two.
    DeafAt(usize, u64, u64),
    /// This replica's process is stopped for a time between two.
    PauseAt(usize, u64, u64),
    /// Several things, each at a time between two from now, in milliseconds.
    Then(&'static [(u64, u64, Self)]),
}

impl World {
    pub(super) fn random_fault(&mut self) {
        let all: u64 = self.weather.faults.iter().map(|(_, weight)| weight).sum();
        let mut chosen = self.dice.between(1, all);
        let mut faults = self.weather.faults.iter();
        let action = loop {
            let Some((action, weight)) = faults.next() else {
                return;
            };
            match chosen <= *weight {
                true => break *action,
                false => chosen -= weight,
            }
        };
        self.act(action);
        let (low, high) = self.weather.fault_every;
        let next = self.dice.seconds(low, high);
        self.after(next, Event::Fault);
    }

    pub(super) fn act(&mut self, action: Action) {
        let split = self.split_until > self.now;
        // A stopped server does nothing that it is told.
        let busy = split || self.engines.nodes[self.primary].stopped_until > self.now;
        match action {
            Action::Flush if !busy => self.engines.nodes[self.primary].rows = None,
            Action::Restart if !busy => self.restart_engine(),
            Action::Failover if !split => self.fail_over(),
            Action::SwapBack if !busy => self.swap_back(),
            Action::Split { back } if !split => self.split(back),
            Action::SetClock if !split => self.set_clock(),
            Action::LoseCopy if !split => self.lose_copy(),
            Action::Flush
            | Action::Restart
            | Action::Failover
            | Action::SwapBack
            | Action::Split { .. }
            | Action::SetClock
            | Action::LoseCopy => {}
            Action::Heal(primary) => self.heal(primary),
            Action::Promote(copy, from, since) => {
                let lag = self.dice.below(3);
                let back = ((self.now - since) / SECOND) as usize + lag;
                self.engines.promote(copy, from, back);
                self.other_side = Some(copy);
            }
            Action::Follow(at, primary) => self.engines.follow(at, primary),
            Action::Move(start, node) => {
                if let Some(process) = self.process(start) {
                    process.node = node;
                }
            }
            Action::Down => {
                let length = self.dice.seconds(0, 60);
                self.engines.nodes[self.primary].down_until = self.now + length;
            }
            Action::Gone => self.engines.nodes[self.primary].down_until = Time::MAX,
            Action::Stop => {
                let length = self.dice.seconds(0, 200);
                self.engines.nodes[self.primary].stopped_until = self.now + length;
            }
            Action::Slow => self.slow_until = self.now + self.dice.seconds(0, 60),
            Action::Cut { at_least, at_most } => self.cut(at_least, at_most),
            Action::Pause => self.pause_one(false),
            Action::Suspend => self.pause_one(true),
            Action::Kill { knows } => self.kill_one(knows),
            Action::MoveDemand => self.move_demand(),
            Action::Burst => {
                let slot = self.dice.below(self.slots.len());
                self.burst(slot);
            }
            Action::BurstAt(slot) => self.burst(slot),
            Action::CutAt(slot, low, high) => {
                let until = self.now + self.dice.seconds(low, high);
                if let Some(process) = &mut self.slots[slot] {
                    (process.cut_from, process.cut_to) = (until, until);
                }
            }
            Action::DeafAt(slot, low, high) => {
                let until = self.now + self.dice.seconds(low, high);
                if let Some(process) = &mut self.slots[slot] {
                    process.cut_to = until;
                }
            }
            Action::PauseAt(slot, low, high) => {
                let length = self.dice.seconds(low, high);
                self.pause(slot, length, false);
            }
            Action::Then(all) => {
                for (low, high, action) in all {
                    let wait = self.dice.ms(*low, *high);
                    self.after(wait, Event::Do(*action));
                }
            }
        }
    }

    fn restart_engine(&mut self) {
        let back = self.dice.between(0, 30) as usize;
        let back = self.dice.percent(70).then_some(back);
        self.engines.restart(self.primary, back);
        let primary = self.primary;
        self.engines.nodes[primary].down_until = self.now + self.dice.ms(0, 5000);
        for copy in self.copies_of(primary) {
            self.engines.nodes[copy].is_linked = false;
            let again = self.now + self.dice.ms(500, 8000);
            self.at(again, Event::Do(Action::Follow(copy, primary)));
        }
    }

    fn copies_of(&self, primary: usize) -> Vec<usize> {
        let nodes = 0..self.engines.nodes.len();
        let is_copy = |at: &usize| *at != primary && self.engines.nodes[*at].follows == primary;
        nodes.filter(is_copy).collect()
    }

    fn fail_over(&mut self) {
        let old = self.primary;
        let mut copies = self.copies_of(old);
        if copies.is_empty() {
            return;
        }
        let new = copies.swap_remove(self.dice.below(copies.len()));
        let lag = self.dice.below(6);
        self.engines.promote(new, old, lag);
        self.engines.nodes[old].down_until = self.now + self.dice.seconds(1, 40);
        self.engines.follow(old, new);
        for copy in copies {
            self.engines.nodes[copy].is_linked = false;
            self.engines.nodes[copy].follows = new;
            let linked = self.now + self.dice.ms(0, 5000);
            self.at(linked, Event::Do(Action::Follow(copy, new)));
        }
        self.primary = new;
        self.move_all(new, 10);
    }

    fn swap_back(&mut self) {
        let Some(copy) = self.copies_of(self.primary).pop() else {
            return;
        };
        let lag = self.dice.below(6);
        let primary = self.primary;
        self.engines.promote(primary, primary, lag);
        self.engines.follow(copy, primary);
    }

    /// All processes report to another server, each from a moment of its own.
    fn move_all(&mut self, node: usize, within: u64) {
        for slot in 0..self.slots.len() {
            if let Some(start) = self.slots[slot].as_ref().map(|process| process.start) {
                let when = self.now + self.dice.seconds(0, within);
                self.at(when, Event::Do(Action::Move(start, node)));
            }
        }
    }

    fn split(&mut self, back: bool) {
        let old = self.primary;
        let mut copies = self.copies_of(old);
        if copies.is_empty() {
            return;
        }
        let new = copies.swap_remove(self.dice.below(copies.len()));
        self.engines.part(new, self.now);
        let promoted = self.now + self.dice.ms(0, 15_000);
        self.at(promoted, Event::Do(Action::Promote(new, old, self.now)));
        for copy in copies {
            if self.dice.percent(60) {
                self.engines.part(copy, self.now);
                let linked = promoted + self.dice.ms(0, 5000);
                self.at(linked, Event::Do(Action::Follow(copy, new)));
            }
        }
        let (shortest, longest) = self.weather.split_lasts;
        let end = promoted + self.dice.seconds(shortest, longest);
        for slot in 0..self.slots.len() {
            let Some(start) = self.slots[slot].as_ref().map(|process| process.start) else {
                continue;
            };
            if self.dice.percent(50) {
                let when = promoted + self.dice.seconds(0, 15);
                self.at(when, Event::Do(Action::Move(start, new)));
            }
            if self.dice.percent(20) {
                let (when, to) = (self.dice.between(promoted, end), [old, new]);
                let to = to[self.dice.below(2)];
                self.at(when, Event::Do(Action::Move(start, to)));
            }
        }
        self.split_until = end + 1;
        let primary = if back { old } else { new };
        self.at(end, Event::Do(Action::Heal(primary)));
    }

    fn heal(&mut self, primary: usize) {
        self.primary = primary;
        self.other_side = None;
        for node in 0..self.engines.nodes.len() {
            if node != primary {
                self.engines.follow(node, primary);
            }
        }
        self.move_all(primary, 8);
    }

    fn set_clock(&mut self) {
        let by = match self.dice.percent(10) {
            true => 200_000,
            false => self.dice.between(0, 7200) as i64 - 3600,
        };
        self.engines.nodes[self.primary].set_clock(by);
    }

    fn lose_copy(&mut self) {
        let primary = self.primary;
        if let Some(copy) = self.copies_of(primary).pop() {
            self.engines.part(copy, self.now);
            let again = self.now + self.dice.seconds(1, 60);
            self.at(again, Event::Do(Action::Follow(copy, primary)));
        }
    }

    fn cut(&mut self, at_least: u64, at_most: u64) {
        let slot = self.dice.below(self.slots.len());
        let until = self.now + self.dice.seconds(at_least, at_most);
        let direction = self.dice.below(4);
        if let Some(process) = &mut self.slots[slot] {
            if direction != 0 {
                process.cut_from = until;
            }
            if direction != 1 {
                process.cut_to = until;
            }
        }
    }

    fn burst(&mut self, slot: usize) {
        if let Some(process) = &mut self.slots[slot] {
            process.wait_in_queue(40);
            let start = process.start;
            self.after(0, Event::Try(start));
        }
    }

    fn pause_one(&mut self, is_suspended: bool) {
        let slot = self.dice.below(self.slots.len());
        let length = match self.dice.percent(50) {
            true => self.dice.seconds(0, 10),
            false => self.dice.seconds(10, 300),
        };
        self.pause(slot, length, is_suspended);
    }

    fn pause(&mut self, slot: usize, length: Time, is_suspended: bool) {
        let until = self.now + length;
        let now = self.now;
        if let Some(process) = &mut self.slots[slot]
            && process.paused_until <= now
        {
            process.paused_until = until;
            if is_suspended {
                process.clocks.suspended += length;
            }
            let start = process.start;
            self.at(until, Event::Resume(start));
        }
    }

    fn kill_one(&mut self, knows: u64) {
        let slot = self.dice.below(self.slots.len());
        let now = self.now;
        let runs = |process: &Process| process.paused_until <= now;
        if !self.slots[slot].as_ref().is_some_and(runs) {
            return;
        }
        self.kill(slot);
        let again = match self.dice.percent(70) {
            true => self.dice.ms(10, 3000),
            false => self.dice.seconds(3, 200),
        };
        let knows = self.dice.percent(knows);
        self.after(again, Event::Start(slot, knows));
    }

    fn move_demand(&mut self) {
        let replicas = self.replicas;
        for slot in 0..self.slots.len() {
            let every = self
                .weather
                .demand_every(&mut self.dice, self.total.minute, replicas);
            if let Some(process) = &mut self.slots[slot] {
                process.every = every;
            }
        }
    }
}
