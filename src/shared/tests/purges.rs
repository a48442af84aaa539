//! Replicas that follow the purges through the real script, in steps.

use std::collections::BTreeSet;

use fastrand::Rng;
use mlua::Table;

use super::server::Server;
use crate::shared::purges::SCRIPT;

const STEPS: usize = 120;
const KEYS: [&str; 3] = ["state", "stream", "applied"];
/// A stream so short that replicas which are cut off fall behind it.
const LENGTHS: (&str, &str) = ("1024, 256", "6, 256");

/// Rules, and what the script is without one.
pub(super) const RULES: &str = "\
another server|if stored[1] ~= server|if not stored[1]
all drop all|own > began)|false)
a life before the last one|follows ~= before or|
nothing applied|must_drop and 1|own and must_drop and 1
behind the stream|or own < first|";

#[derive(Default)]
struct Replica {
    process: usize,
    applied: Option<(String, String)>,
    /// Its own purges that the engine has not got yet, as far as it knows.
    waiting: Vec<usize>,
    /// Purges of others that it has not applied.
    missing: BTreeSet<usize>,
    is_cut_off: bool,
}

struct World {
    rng: Rng,
    server: Server,
    replicas: Vec<Replica>,
    /// How many purges, lives and processes there were.
    count: usize,
}

/// Every replica that the engine reaches in the end has applied every purge.
pub(super) fn run(seed: u64, cut: Option<(&str, &str)>) -> Result<(), String> {
    let mut script = SCRIPT.to_owned();
    for (old, new) in [LENGTHS].into_iter().chain(cut) {
        assert!(script.contains(old), "not in the script: {old}");
        script = script.replace(old, new);
    }
    let mut rng = Rng::with_seed(seed);
    let replicas = (0..rng.usize(2..=4)).map(|process| Replica {
        process,
        ..Replica::default()
    });
    let mut world = World {
        replicas: replicas.collect(),
        rng,
        server: Server::new(&[script]),
        count: 10,
    };
    for _ in 0..STEPS {
        world.step();
    }
    for replica in &mut world.replicas {
        replica.is_cut_off = false;
    }
    for _ in 0..12 {
        for at in 0..world.replicas.len() {
            world.follow(at, false);
        }
    }
    let mut missing = world.replicas.iter().map(|replica| &replica.missing);
    let missed = missing.find(|missing| !missing.is_empty());
    missed.map_or(Ok(()), |missed| Err(format!("missed: {missed:?}")))
}

impl World {
    fn step(&mut self) {
        let at = self.rng.usize(0..self.replicas.len());
        match self.rng.u8(0..100) {
            0..60 if !self.replicas[at].is_cut_off => {
                let is_lost = self.rng.u8(0..8) == 0;
                self.follow(at, is_lost);
            }
            0..60 => {}
            60..75 => self.announce(at),
            75..80 => self.replicas[at].is_cut_off ^= true,
            80..83 => self.restart(at),
            83..86 => self.server.flush(),
            86..89 => {
                let [is_empty, keeps_id] = [self.rng.bool(), self.rng.bool()];
                self.server.restart(is_empty, keeps_id);
            }
            89..92 => self.server.fail_over(),
            92..97 => self.server.copy(),
            _ => self.server.save(),
        }
    }

    fn announce(&mut self, at: usize) {
        self.count += 1;
        for (other, replica) in self.replicas.iter_mut().enumerate() {
            if other == at {
                replica.waiting.push(self.count);
            } else {
                replica.missing.insert(self.count);
            }
        }
    }

    /// The process is killed; its purges that nobody has got go with it. It starts with what it
    /// has on disk.
    fn restart(&mut self, at: usize) {
        self.count += 1;
        self.replicas[at].process = self.count;
        let lost = std::mem::take(&mut self.replicas[at].waiting);
        for replica in &mut self.replicas {
            replica.missing.retain(|purge| !lost.contains(purge));
        }
    }

    /// One call, of which the reply may be lost.
    fn follow(&mut self, at: usize, is_lost: bool) {
        self.count += 1;
        let replica = &mut self.replicas[at];
        let (life, own) = replica.applied.clone().unwrap_or_default();
        let [process, new] = [replica.process, self.count].map(|number| number.to_string());
        let waiting: Vec<_> = replica.waiting.iter().map(usize::to_string).collect();
        let mut arguments = vec![&*process, &life, &own, &new];
        arguments.extend(waiting.iter().map(|purge| &**purge));
        let reply = self.server.call(0, 0, &KEYS, &arguments);
        if is_lost {
            return;
        }
        let reply = reply.as_table().unwrap();
        let generation: u64 = reply.get(2).unwrap();
        replica.applied = Some((reply.get(1).unwrap(), generation.to_string()));
        replica.waiting.clear();
        let purges: Table = reply.get(4).unwrap();
        for purge in purges.sequence_values() {
            let [_, purge]: [String; 2] = purge.unwrap();
            replica.missing.remove(&purge.parse().unwrap());
        }
        if reply.get::<u8>(3).unwrap() == 1 {
            replica.missing.clear();
        }
    }
}
