//! The script and its model give the same replies, on a real server.

use super::super::SYNC;
use super::super::model::MOST_RECORDS;
use super::super::model::{self, ModelJournal};
use super::super::position::Generation;
use super::super::record::RecordUid;
use super::super::sync::{ReadUpTo, RowChange, SyncReply, SyncRequest};
use crate::clock::Clock;
use crate::shared::allowance::ProcessId;
use crate::shared::engine::server::{EngineScript, EngineUrl, RedisEngine};
use crate::shared::servers::{Server, is_installed};

const KEYS: [&str; 3] = ["{test:j}", "{test:j}:s", "{test:j}:u"];

/// Long enough for a busy machine.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

struct ComparedSyncs {
    server: Server,
    engine: std::sync::Arc<RedisEngine>,
    script: EngineScript,
    model: Option<ModelJournal>,
    dice: fastrand::Rng,
    generations: Vec<Generation>,
    sequences: [u64; 4],
}

impl ComparedSyncs {
    fn new(seed: u64) -> Self {
        let server = Server::start();
        let url = EngineUrl::parse(&server.url()).unwrap();
        Self {
            engine: RedisEngine::new(url, TIMEOUT, Clock::manual()),
            server,
            script: EngineScript::new(SYNC),
            model: None,
            dice: fastrand::Rng::with_seed(seed),
            generations: Vec::new(),
            sequences: [0; 4],
        }
    }

    fn life(&self) -> String {
        let fields = ["run_id", "master_replid"];
        let [run, replication] = fields.map(|field| self.server.info(field));
        format!("{run}-{replication}")
    }

    async fn compare(&mut self, life: &str, request: &SyncRequest) -> SyncReply {
        let answer = self
            .engine
            .run(&self.script, &KEYS, &request.arguments())
            .await;
        let script = SyncReply::read(&answer.unwrap()).unwrap();
        let mut modelled = model::sync(&mut self.model, (life, 0), request);
        // Only the time that is part of the name of a new generation differs.
        let begun = modelled.generation;
        if begun != script.generation && begun.0[8..] == [0; 8] {
            assert_eq!(begun.0[..8], script.generation.0[..8], "{request:?}");
            modelled.generation = script.generation;
            self.model.as_mut().unwrap().generation = script.generation;
            self.generations.push(script.generation);
        }
        assert!(script.now_ms > 1_600_000_000_000, "{}", script.now_ms);
        modelled.now_ms = script.now_ms;
        assert_eq!(script, modelled, "{request:?}");
        script
    }

    /// The clock was later, by so many milliseconds.
    fn set_back(&mut self, millis: u64) {
        let Some(model) = &mut self.model else {
            return;
        };
        model.clock = millis;
        let time = self.server.call(&["TIME"]);
        let seconds: u64 = time.list()[0].text().parse().unwrap();
        let clock = (seconds * 1000 + millis).to_string();
        self.server.call(&["HSET", KEYS[0], "clock", &clock]);
    }

    fn random_request(&mut self) -> SyncRequest {
        let dice = &mut self.dice;
        let who = dice.usize(0..4);
        self.sequences[who] += dice.u64(0..3);
        let count = self.model.as_ref().map_or(0, |model| model.count);
        let known = self.generations.len().saturating_sub(dice.usize(1..3));
        let generation = self.generations.get(known).copied();
        let followed = generation.filter(|_| dice.u8(0..5) > 0).map(|generation| {
            let applied = (count + u64::from(dice.u8(0..200) == 0)).saturating_sub(dice.u64(0..90));
            let read = applied.saturating_sub(dice.u64(0..5));
            let records = self.model.as_ref().map(|model| &model.records);
            let at = usize::try_from(applied.saturating_sub(1)).unwrap();
            let last = records.and_then(|records| records.get(at));
            let last = last.map(|(uid, _)| *uid).filter(|_| dice.bool());
            let last = match dice.u8(0..200) {
                0 => Some(RecordUid {
                    process: ProcessId(8),
                    number: 1,
                }),
                // The uid of another record.
                1 => records.and_then(|records| Some(records.front()?.0)),
                _ => last,
            };
            ReadUpTo {
                generation,
                read,
                applied,
                last,
            }
        });
        let records = (0..dice.usize(0..6)).map(|_| {
            let uid = RecordUid {
                process: ProcessId(7),
                number: dice.u64(0..3000),
            };
            let content: Vec<u8> = (0..dice.usize(0..40)).map(|_| dice.u8(..)).collect();
            (uid, content.into())
        });
        let records = records.collect();
        let forget = (0..dice.usize(0..2)).map(|_| {
            let process = dice.usize(0..4);
            (
                ProcessId(process as u128),
                self.sequences[process].saturating_sub(dice.u64(0..2)),
            )
        });
        let forget = forget.collect();
        SyncRequest {
            process: ProcessId(who as u128),
            name: format!("replica, {who}").into(),
            sequence: self.sequences[who],
            followed,
            list: true,
            row: match dice.u8(0..10) {
                0 => RowChange::Remove,
                1 => RowChange::Keep,
                _ => RowChange::Write,
            },
            forget,
            records,
        }
    }
}

#[tokio::test]
async fn the_script_and_its_model_are_the_same() {
    if !is_installed() {
        return;
    }
    let mut compared = ComparedSyncs::new(5);
    let mut life = compared.life();
    for round in 0..1500 {
        match compared.dice.u16(0..300) {
            0 => {
                compared.server.call(&["FLUSHALL"]);
                compared.model = None;
            }
            1 => {
                // One key is lost: the keys do not fit each other.
                compared.server.call(&["DEL", KEYS[1]]);
                if let Some(model) = &mut compared.model
                    && model.count > 0
                {
                    compared.model = None;
                }
            }
            2 => {
                // Another replication id.
                compared.server.call(&["REPLICAOF", "127.0.0.1", "1"]);
                compared.server.promote();
                life = compared.life();
            }
            // The clock is set back, by an hour or by less than is noticed. (The time of the
            // model is always 0.)
            3 => compared.set_back(3_600_000),
            4 => compared.set_back(900),
            _ => {}
        }
        let request = compared.random_request();
        compared.compare(&life, &request).await;
        assert!(round < 100 || !compared.generations.is_empty());
    }
    assert!(
        compared.generations.len() > 5,
        "{}",
        compared.generations.len()
    );
}

/// More records than the engine keeps, and more uids than it remembers.
#[tokio::test]
async fn the_script_forgets_the_oldest_as_its_model_does() {
    if !is_installed() {
        return;
    }
    let mut compared = ComparedSyncs::new(6);
    let life = compared.life();
    let mut number = 0;
    let mut request = compared.random_request();
    (request.followed, request.row, request.forget) = (None, RowChange::Write, Vec::new());
    for sequence in 10..280 {
        let records = (0..64).map(|_| {
            number += 1;
            let uid = RecordUid {
                process: ProcessId(7),
                number,
            };
            (uid, b"content".as_slice().into())
        });
        request.records = records.collect();
        request.sequence = sequence;
        let reply = compared.compare(&life, &request).await;
        let first = reply.tail.saturating_sub(MOST_RECORDS as u64) + 1;
        assert_eq!(reply.first, first);
        assert_eq!(reply.records.len(), 64);
    }
    // The first uid is forgotten, the last is known.
    let known = compared.model.as_ref().unwrap().uids.len();
    assert_eq!(known, 16_384);
    let uid = |number| RecordUid {
        process: ProcessId(7),
        number,
    };
    request.records = [1, number]
        .map(|n| (uid(n), b"again".as_slice().into()))
        .into();
    let reply = compared.compare(&life, &request).await;
    assert_eq!(reply.tail, number + 1);
    assert_eq!(compared.model.as_ref().unwrap().records.len(), MOST_RECORDS);
    // What a process has applied is compared with the uids, though the record is trimmed.
    let tail = number + 1;
    let oldest = tail - 16_384 + 1;
    request.records.clear();
    for (last, applied, is_same) in [
        (uid(oldest), oldest, true),
        (uid(3), oldest - 1, true),
        (uid(2), oldest, false),
    ] {
        request.sequence += 1;
        request.followed = Some(ReadUpTo {
            generation: reply.generation,
            read: tail,
            applied,
            last: Some(last),
        });
        let now = compared.compare(&life, &request).await;
        assert_eq!(now.generation == reply.generation, is_same, "{applied}");
    }
}
