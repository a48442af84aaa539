//! In what order those wait who want something of the upstream: by priority,
//! and within one priority in turns, so that a client with many requests waits
//! behind itself and not before others. Pure.
//!
//! Each client has a line of its own in the order of its requests' coming; the
//! clients take turns. The room is bounded: where it is full, the longest line
//! of the least urgent loses its last.
//!
//! Deliberately absent: what is waited for, for how long, and waking; those are
//! `upstream::line`'s.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;

use super::{Priority, Wish};
use crate::identify::Caller;

/// Those who wait.
#[derive(Debug)]
pub struct Queue {
    ranks: [Rank; Priority::ALL.len()],
    waiting: usize,
    most: usize,
    /// The next one's number.
    next: u64,
}

/// A number that no other who waits has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number(u64);

/// That there is no room for one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Those of one priority.
#[derive(Debug, Default)]
struct Rank {
    /// The clients that have a line, the one whose turn it is first.
    turns: VecDeque<Option<Caller>>,
    lines: HashMap<Option<Caller>, VecDeque<Number>, RandomState>,
}

impl Queue {
    /// Nobody, and room for so many.
    pub fn new(most: usize) -> Self {
        Self {
            ranks: Default::default(),
            waiting: 0,
            most,
            next: 0,
        }
    }

    /// Holds so many from now on; who waits already stays.
    pub fn bound(&mut self, most: usize) {
        self.most = most;
    }

    /// Takes one more in; and says who has to go for it, if anyone.
    ///
    /// # Errors
    /// Where there is no room, and nobody who would have to go before this one.
    pub fn enter(&mut self, wish: Wish) -> Result<(Number, Option<Number>), Full> {
        let out = match self.waiting < self.most {
            true => None,
            false => Some(self.drop_last(wish)?),
        };
        let number = Number(self.next);
        self.next += 1;
        self.waiting += 1;
        let rank = &mut self.ranks[wish.priority.rank()];
        let line = rank.lines.entry(wish.caller).or_default();
        if line.is_empty() {
            rank.turns.push_back(wish.caller);
        }
        line.push_back(number);
        Ok((number, out))
    }

    /// Whose turn it is.
    pub fn first(&self) -> Option<Number> {
        let mut ranks = self.ranks.iter();
        ranks.find_map(|rank| rank.lines.get(rank.turns.front()?)?.front().copied())
    }

    /// Whether one of this priority would have to wait for another's turn.
    pub fn has_before(&self, priority: Priority) -> bool {
        let ranks = &self.ranks[..=priority.rank()];
        ranks.iter().any(|rank| !rank.turns.is_empty())
    }

    /// Lets one go who has waited: served, so that it is the next client's turn,
    /// or tired of waiting.
    pub fn leave(&mut self, wish: Wish, number: Number, served: bool) {
        let rank = &mut self.ranks[wish.priority.rank()];
        let Some(line) = rank.lines.get_mut(&wish.caller) else {
            return;
        };
        let Some(at) = line.iter().position(|other| *other == number) else {
            return;
        };
        line.remove(at);
        self.waiting -= 1;
        if line.is_empty() {
            rank.lines.remove(&wish.caller);
            rank.turns.retain(|caller| *caller != wish.caller);
        } else if served && rank.turns.front() == Some(&wish.caller) {
            rank.turns.rotate_left(1);
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Makes room for a wish: the last of the longest line of the least urgent
    /// goes.
    fn drop_last(&mut self, wish: Wish) -> Result<Number, Full> {
        let least = self.ranks.iter().rposition(|rank| !rank.turns.is_empty());
        let least = least.filter(|least| *least >= wish.priority.rank());
        let least = least.ok_or(Full)?;
        let rank = &mut self.ranks[least];
        let own = match least == wish.priority.rank() {
            true => rank.lines.get(&wish.caller).map_or(0, VecDeque::len),
            // It is worth more than all of them.
            false => 0,
        };
        let lines = rank
            .turns
            .iter()
            .map(|caller| (*caller, rank.lines.get(caller)));
        let longest = lines.max_by_key(|(_, line)| line.map_or(0, VecDeque::len));
        let (caller, line) = longest.ok_or(Full)?;
        let is_own = least == wish.priority.rank() && line.map_or(0, VecDeque::len) <= own + 1;
        let last = line.and_then(|line| line.back().copied()).ok_or(Full)?;
        if is_own {
            return Err(Full);
        }
        let priority = Priority::ALL[least];
        self.leave(Wish { priority, caller }, last, false);
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn wish(priority: Priority, caller: u32) -> Wish {
        Wish {
            priority,
            caller: Some(Caller::V4(caller)),
        }
    }

    /// Serves all who wait; answers with whose turn it was.
    fn served(queue: &mut Queue, waiting: &mut Vec<(Number, Wish)>) -> Vec<Wish> {
        let mut order = Vec::new();
        while let Some(first) = queue.first() {
            let at = waiting.iter().position(|(number, _)| *number == first);
            let (number, wish) = waiting.remove(at.unwrap());
            queue.leave(wish, number, true);
            order.push(wish);
        }
        assert!(queue.is_empty());
        order
    }

    #[test]
    fn clients_take_turns_within_a_priority() {
        let (probe, miss, again) = (Priority::Probe, Priority::Miss, Priority::Revalidation);
        let mut queue = Queue::new(100);
        let mut waiting = Vec::new();
        for wish in [
            wish(miss, 1),
            wish(miss, 1),
            wish(miss, 1),
            wish(miss, 2),
            wish(again, 3),
            wish(miss, 2),
            wish(probe, 4),
            wish(miss, 5),
        ] {
            waiting.push((queue.enter(wish).unwrap().0, wish));
        }
        let order = served(&mut queue, &mut waiting);
        let expected = [
            wish(probe, 4),
            wish(miss, 1),
            wish(miss, 2),
            wish(miss, 5),
            wish(miss, 1),
            wish(miss, 2),
            wish(miss, 1),
            wish(again, 3),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn who_gives_up_costs_nobody_a_turn() {
        let miss = Priority::Miss;
        let mut queue = Queue::new(100);
        let numbers = [1, 1, 2].map(|caller| queue.enter(wish(miss, caller)).unwrap().0);
        queue.leave(wish(miss, 1), numbers[0], false);
        assert_eq!(queue.first(), Some(numbers[1]));
        queue.leave(wish(miss, 1), numbers[0], false);
        assert_eq!(queue.len(), 2, "it has gone already");
    }

    #[test]
    fn a_full_room_drops_from_the_longest_line_of_the_least_urgent() {
        let (miss, again) = (Priority::Miss, Priority::Revalidation);
        let mut queue = Queue::new(4);
        let mut enter = |wish| queue.enter(wish);
        for _ in 0..3 {
            enter(wish(miss, 1)).unwrap();
        }
        let last = enter(wish(miss, 1)).unwrap().0;
        assert_eq!(
            enter(wish(miss, 1)),
            Err(Full),
            "its own line is the longest"
        );
        assert_eq!(
            enter(wish(again, 2)),
            Err(Full),
            "all others are more urgent"
        );
        let (second, out) = enter(wish(miss, 2)).unwrap();
        assert_eq!(out, Some(last));
        let (_, out) = enter(wish(Priority::Probe, 3)).unwrap();
        assert!(out.is_some() && out != Some(second));
        assert_eq!(queue.len(), 4);
    }

    proptest! {
        /// Whoever comes and goes, the room's bound holds, the most urgent are
        /// first, and of two clients that both wait all the time neither is
        /// served twice between two turns of the other.
        #[test]
        fn turns_are_even(
            steps in proptest::collection::vec((0_usize..4, 0_u32..4, 0_u8..4), 1..300),
        ) {
            let mut queue = Queue::new(20);
            let mut waiting: Vec<(Number, Wish)> = Vec::new();
            for (priority, caller, act) in steps {
                let wish = wish(Priority::ALL[priority], caller);
                match act {
                    0 | 1 => match queue.enter(wish) {
                        Ok((number, out)) => {
                            waiting.retain(|(other, _)| Some(*other) != out);
                            waiting.push((number, wish));
                        }
                        Err(Full) => prop_assert_eq!(queue.len(), 20),
                    },
                    2 => {
                        if let Some(at) = waiting.iter().position(|(_, w)| *w == wish) {
                            let (number, wish) = waiting.remove(at);
                            queue.leave(wish, number, false);
                        }
                    }
                    _ => {
                        if let Some(first) = queue.first() {
                            let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                            let (number, wish) = waiting.remove(at);
                            let urgent = waiting.iter().map(|(_, w)| w.priority).min();
                            prop_assert!(urgent.is_none_or(|urgent| wish.priority <= urgent));
                            queue.leave(wish, number, true);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert!(queue.len() <= 20);
            }
            let order = served(&mut queue, &mut waiting);
            for (one, other) in [(0, 1), (1, 2), (2, 3)] {
                for priority in Priority::ALL {
                    let of = |w: &&Wish| w.priority == priority
                        && [Some(Caller::V4(one)), Some(Caller::V4(other))].contains(&w.caller);
                    let turns: Vec<_> = order.iter().filter(of).map(|w| w.caller).collect();
                    // Once one has no more, the rest is the other's.
                    let last = |c: u32| turns.iter().rposition(|t| *t == Some(Caller::V4(c)));
                    let both = last(one).min(last(other)).unwrap_or(0);
                    let even = turns[..both].windows(2).all(|pair| pair[0] != pair[1]);
                    prop_assert!(even, "{turns:?}");
                }
            }
        }
    }
}
