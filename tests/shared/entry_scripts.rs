//! The scripts for stored responses and their model give the same replies, on a real
//! server.

use ordgate::shared::engine::entries::model::{EntryLock, EntryRow};
use ordgate::shared::engine::entries::{
    EntryName, FillToken, FoundEntry, GET, GIVE_UP, GivenUp, LookUp, PUT, PutEntry,
};

use super::scripts::Dice;
use super::servers::{Answer, Connection, Server, is_installed, wait_for};

fn random_token(dice: &mut Dice) -> FillToken {
    FillToken(u128::from(dice.below(4)) << 64 | 1)
}

struct Scripts {
    client: Connection,
    name: EntryName,
    hashes: [String; 3],
}

impl Scripts {
    fn new(server: &Server) -> Self {
        let mut client = server.connection();
        let hashes = [GET, PUT, GIVE_UP].map(|script| {
            let hash = client.call(&["SCRIPT", "LOAD", script]);
            hash.text().to_owned()
        });
        let name = EntryName::new("test", [5; 16]);
        Self {
            client,
            name,
            hashes,
        }
    }

    fn run(&mut self, script: usize, keys: &[&str], arguments: &[&str]) -> Answer {
        let count = keys.len().to_string();
        let mut all = vec!["EVALSHA", &self.hashes[script], &count];
        all.extend(keys);
        all.extend(arguments);
        let answer = self.client.call(&all);
        if let Answer::Error(error) = &answer {
            panic!("{error}");
        }
        answer
    }

    fn look_up(&mut self, look_up: &LookUp) -> FoundEntry {
        let name = self.name.clone();
        let arguments = look_up.arguments();
        let arguments = arguments.each_ref().map(|argument| &**argument);
        let answer = self.run(0, &[&name.value, &name.lock], &arguments);
        let list = answer.list();
        let Answer::Number(now) = list[0] else {
            panic!("no time: {answer:?}");
        };
        assert!(now > 1_600_000_000_000, "{now}");
        match (list[1].text(), list.len()) {
            ("have", 4) => FoundEntry::Have {
                id: FillToken::read(list[2].text().as_bytes()).unwrap(),
                value: list[3].text().into(),
            },
            ("lead", 2) => FoundEntry::Lead,
            ("follow", 2) => FoundEntry::Follow,
            ("none", 2) => FoundEntry::None,
            _ => panic!("{answer:?}"),
        }
    }

    fn put(&mut self, entry: &PutEntry) -> bool {
        let name = self.name.clone();
        let arguments = entry.arguments();
        let mut arguments: Vec<_> = arguments.iter().map(|argument| &**argument).collect();
        arguments.push(std::str::from_utf8(&entry.value).unwrap());
        self.run(1, &[&name.value, &name.lock], &arguments) == Answer::Number(1)
    }

    fn give_up(&mut self, given_up: GivenUp) -> bool {
        let (lock, arguments) = (self.name.lock.clone(), given_up.arguments());
        let arguments = arguments.each_ref().map(|argument| &**argument);
        self.run(2, &[&lock], &arguments) == Answer::Number(1)
    }
}

#[test]
fn the_scripts_for_responses_and_their_model_agree() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut scripts = Scripts::new(&server);
    let (mut found, mut unlocked) = ([0; 4], 0);
    for seed in 1..=20 {
        scripts.client.call(&["FLUSHALL"]);
        let (mut model, mut dice) = (EntryRow::default(), Dice(seed));
        for step in 0..300 {
            let at = format!("seed {seed}, step {step}");
            match dice.below(9) {
                0..4 => {
                    let look_up = LookUp {
                        unusable: (dice.below(2) == 0).then(|| random_token(&mut dice)),
                        token: random_token(&mut dice),
                        lock_ms: dice.below(4).min(1) * 600_000,
                    };
                    let modelled = model.look_up(&look_up);
                    assert_eq!(scripts.look_up(&look_up), modelled, "{at}: {look_up:?}");
                    let is_unlocked = model.lock == Some(EntryLock::Unlocked);
                    unlocked += u32::from(is_unlocked && look_up.lock_ms > 0);
                    found[match modelled {
                        FoundEntry::Have { .. } => 0,
                        FoundEntry::Lead => 1,
                        FoundEntry::Follow => 2,
                        FoundEntry::None => 3,
                    }] += 1;
                }
                4..6 => {
                    let entry = PutEntry {
                        token: random_token(&mut dice),
                        generation: ["a", "b"][dice.below(2) as usize].repeat(16),
                        record: format!("{:020}", dice.below(20)),
                        received_ms: dice.below(3) + 1_700_000_000_000,
                        stay_ms: 600_000,
                        value: format!("value {step}").into(),
                    };
                    assert_eq!(scripts.put(&entry), model.put(&entry), "{at}: {entry:?}");
                }
                6 => {
                    let given_up = GivenUp {
                        token: random_token(&mut dice),
                        unlocked_ms: dice.below(2) * 600_000,
                    };
                    let modelled = model.give_up(given_up);
                    assert_eq!(scripts.give_up(given_up), modelled, "{at}: {given_up:?}");
                }
                7 => {
                    // The lock expires.
                    scripts.client.call(&["DEL", &scripts.name.lock.clone()]);
                    model.lock = None;
                }
                _ => {
                    // The response does, or is evicted.
                    if dice.below(3) == 0 {
                        scripts.client.call(&["DEL", &scripts.name.value.clone()]);
                        model.entry = None;
                    }
                }
            }
        }
    }
    assert!(found.iter().all(|count| *count > 100), "{found:?}");
    assert!(unlocked > 50, "{unlocked}");
}

#[test]
fn locks_and_responses_expire() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut scripts = Scripts::new(&server);
    let look_up = |token, lock_ms| LookUp {
        unusable: None,
        token: FillToken(token),
        lock_ms,
    };
    assert_eq!(scripts.look_up(&look_up(1, 50)), FoundEntry::Lead);
    assert_eq!(scripts.look_up(&look_up(2, 0)), FoundEntry::None);
    wait_for("the lock expires", || {
        scripts.look_up(&look_up(2, 600_000)) == FoundEntry::Lead
    });
    let entry = PutEntry {
        token: FillToken(1),
        generation: "a".repeat(32),
        record: "1".repeat(20),
        received_ms: 1,
        stay_ms: 50,
        value: b"v".to_vec(),
    };
    assert!(scripts.put(&entry), "a late leader stores what it has");
    wait_for("the response expires", || {
        scripts.look_up(&look_up(3, 0)) == FoundEntry::None
    });
    assert_eq!(scripts.look_up(&look_up(3, 50)), FoundEntry::Follow);
    let given_up = GivenUp {
        token: FillToken(2),
        unlocked_ms: 50,
    };
    assert!(scripts.give_up(given_up) && !scripts.give_up(given_up));
    wait_for("the next one may lead", || {
        scripts.look_up(&look_up(4, 600_000)) == FoundEntry::Lead
    });
}
