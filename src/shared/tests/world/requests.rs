//! What becomes of a request: a permit, or one of the floor; sent, answered, or not.

use super::{
    BUSY, CALM, Cut, Event, LONGEST, Request, Sent, TIMEOUT, TWO_PRIMARIES, USABLE, World, limits,
};

impl World {
    pub(super) fn want(&mut self, at: usize) {
        let (now, budget) = (self.now, self.replicas[at].budget);
        if let Some(is_one) = self.load {
            self.replicas[at].is_loaded = at == 0 || !is_one;
        } else if now >= CALM {
            // Idle, then one replica under all load, or all.
            let is_loaded = at == 0 || self.kinds[0].is_multiple_of(2);
            self.replicas[at].is_loaded = now >= BUSY && is_loaded;
        } else if self.kinds == TWO_PRIMARIES {
            self.replicas[at].is_loaded = at == 0;
        } else if self.rng.u8(0..30) == 0 {
            self.replicas[at].is_loaded ^= true;
        }
        let has_room = self.replicas[at].whole.has_room(now, budget);
        if !self.replicas[at].is_loaded || (!has_room && !self.lacks(Cut::OwnWindows)) {
            return;
        }
        self.next += 1;
        let request = self.next;
        let floor = limits(self.split(budget).floor);
        let takes_floor = self.rng.bool() || now >= BUSY;
        let is_floor = takes_floor && self.replicas[at].floor.has_room(now, floor);
        let is_process_in_id = !self.lacks(Cut::UniqueIds);
        let asks_anyhow = now < BUSY && self.rng.u8(0..16) == 0;
        let replica = &mut self.replicas[at];
        if !is_floor && replica.pool_spent_until > now && !asks_anyhow {
            return;
        }
        replica.whole.0.push((request, None));
        if is_floor {
            replica.floor.0.push((request, None));
        }
        replica.asked += 1;
        let process = [at as u64, replica.process][usize::from(is_process_in_id)];
        let id = match is_floor {
            true => String::new(),
            false => format!("{process}-{}", replica.asked),
        };
        let known = Request {
            replica: at,
            process: replica.process,
            id: id.clone(),
            asked: now,
            asked_monotonic: now - replica.suspended,
            budget,
            is_given_up: false,
            sent: Vec::new(),
        };
        self.requests.insert(request, known);
        if is_floor {
            return self.send(request);
        }
        self.at(now + TIMEOUT, Event::Timeout(request));
        let (way, pool) = (self.way(), limits(self.split(budget).pool));
        if !(self.is_flaky() && self.rng.u8(0..8) == 0) {
            self.at(now + way, Event::TakeArrives(request, id, pool));
        }
    }

    fn is_flaky(&self) -> bool {
        self.flaky_until > self.now
    }

    /// How long a message is under way.
    fn way(&mut self) -> u64 {
        match self.is_flaky() && self.rng.u8(0..4) == 0 {
            true => self.rng.u64(0..5000),
            false => [0, 0, 1, 3][self.rng.usize(0..4)],
        }
    }

    pub(super) fn take_arrives(&mut self, request: u64, id: String, pool: [u32; 2]) {
        if self.stalled_until > self.now {
            return self.at(self.stalled_until, Event::TakeArrives(request, id, pool));
        }
        let (outcome, wait) = self.take(&id, pool);
        if self.is_flaky() && self.rng.u8(0..4) == 0 {
            return;
        }
        let (way, wait) = (self.way(), (outcome != "granted").then_some(wait));
        self.at(self.now + way, Event::Reply(request, wait));
    }

    pub(super) fn reply(&mut self, request: u64, wait: Option<u64>) {
        if !self.give_up(request) {
            return;
        }
        let at = self.requests[&request].replica;
        if let Some(wait) = wait {
            let until = self.now + wait;
            let before = std::mem::replace(&mut self.replicas[at].pool_spent_until, until);
            if before <= self.now {
                self.at(until, Event::WantAgain(at));
            }
            return self.never_written(request, false);
        }
        let may_pause = self.kinds.contains(&1) && self.load.is_none() && self.now < CALM;
        if may_pause && self.rng.u8(0..12) == 0 {
            self.pause(at);
        }
        self.at(self.now, Event::Send(request));
    }

    /// Whether nothing has become of the call for a permit yet.
    fn give_up(&mut self, request: u64) -> bool {
        let known = self.requests.get_mut(&request).unwrap();
        !std::mem::replace(&mut known.is_given_up, true)
    }

    pub(super) fn timeout(&mut self, request: u64) {
        if !self.give_up(request) {
        } else if self.lacks(Cut::UnknownIsSpent) {
            self.send(request);
        } else {
            self.never_written(request, true);
        }
    }

    /// The request is not sent.
    fn never_written(&mut self, request: u64, is_permit: bool) {
        let known = self.requests.remove(&request).unwrap();
        let replica = &mut self.replicas[known.replica];
        replica.whole.0.retain(|(of, _)| *of != request);
        if is_permit {
            self.give_back(known.id, "unused");
        }
    }

    fn give_back(&mut self, id: String, how: &'static str) {
        let way = self.way();
        if !(self.is_flaky() && self.rng.u8(0..4) == 0) {
            self.at(self.now + way, Event::Return(id, how));
        }
    }

    pub(super) fn send(&mut self, request: u64) {
        let known = &self.requests[&request];
        let age = match self.lacks(Cut::BootClock) {
            false => self.now - known.asked,
            true => self.now - self.replicas[known.replica].suspended - known.asked_monotonic,
        };
        let is_floor = known.id.is_empty();
        if !is_floor && age >= USABLE && !self.lacks(Cut::UsedWithinASecond) {
            return self.never_written(request, true);
        }
        let longest = LONGEST << u32::from(self.lacks(Cut::ClosedInTime));
        let is_slow = self.slow_until > self.now;
        let head_after = match is_slow && self.rng.u8(0..3) > 0 {
            true => self.rng.u64(1000..=longest + 5000),
            false if self.load.is_some() => 100,
            false => self.rng.u64(0..100),
        };
        let may_break = self.now < CALM && self.load.is_none() && self.kinds != TWO_PRIMARIES;
        let is_broken = may_break && self.rng.u8(0..8) == 0;
        let (end_after, event) = if is_broken {
            (5, Event::Broken(request))
        } else if head_after < longest {
            (head_after, Event::Head(request))
        } else {
            (longest, Event::GivenUp(request))
        };
        // What was written on a connection that broke may still arrive.
        let counted_for = [end_after, LONGEST][usize::from(is_broken && !is_floor)];
        let sent = Sent {
            from: self.now,
            to: self.now + counted_for,
            replica: known.replica,
            is_pool: !is_floor,
            budget: known.budget,
        };
        self.at(self.now + end_after, event);
        let known = self.requests.get_mut(&request).unwrap();
        known.sent.push(self.sent.len());
        self.sent.push(sent);
    }

    pub(super) fn head(&mut self, request: u64) {
        let known = &self.requests[&request];
        let (at, id) = (known.replica, known.id.clone());
        if !id.is_empty() {
            if self.lacks(Cut::ChargeStays) {
                // From the pool to the floor.
                self.replicas[at].floor.0.push((request, None));
                self.give_back(id, "unused");
            } else {
                self.give_back(id, "answered");
            }
        }
        self.end(request);
    }

    /// What was written may still arrive: the owner does not know when.
    pub(super) fn broken(&mut self, request: u64) {
        let known = &self.requests[&request];
        let (id, age) = (known.id.clone(), self.now - known.asked);
        if !id.is_empty() && self.lacks(Cut::RetryIsNew) && age < USABLE {
            return self.send(request);
        }
        if !id.is_empty() && self.lacks(Cut::WrittenStays) {
            self.give_back(id, "unused");
        }
        self.end(request);
    }

    pub(super) fn end(&mut self, request: u64) {
        let known = self.requests.remove(&request).unwrap();
        let replica = &mut self.replicas[known.replica];
        replica.floor.end(request, self.now);
        replica.whole.end(request, self.now);
    }
}
