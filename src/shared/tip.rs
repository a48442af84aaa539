//! One replica asks a status path for all.
//!
//! Whoever needs a status claims it in the engine, asks, and stores the answer; the others
//! take that, and look again when it is too old. Without an answer of the engine each
//! replica asks by itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use super::engine::{Engine, EngineError, Script};
use crate::clock::Moment;
use crate::sync::lock;

const SCRIPT: &str = include_str!("scripts/tip.lua");

/// How long a claim lasts: whoever claims may be killed.
const CLAIM: Duration = Duration::from_secs(2);
/// How often others look whether an answer has come.
const POLL: Duration = Duration::from_millis(50);

/// Who asks for a status.
pub enum TipLook {
    /// Another replica has asked.
    Answer {
        /// Not later than its request was sent.
        asked: Moment,
        /// What was stored.
        answer: Vec<u8>,
    },
    /// This replica asks, and stores what is answered.
    Ask(TipClaim),
    /// The engine does not answer: this replica asks.
    Absent,
}

/// The right to ask.
pub struct TipClaim {
    tips: Arc<SharedTips>,
    key: String,
    id: [u8; 16],
}

/// What became of the looks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TipsSnapshot {
    /// Another replica's answer was taken.
    pub taken: u64,
    /// This replica asked for all.
    pub asked: u64,
    /// This replica asked for itself.
    pub alone: u64,
}

/// The statuses of all replicas.
pub struct SharedTips {
    engine: Arc<Engine>,
    script: Script,
    counts: Mutex<TipsSnapshot>,
}

impl SharedTips {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            script: Script::new(SCRIPT),
            counts: Mutex::default(),
        })
    }

    /// Looks for the status of a base URL that was asked less than `most` ago, and waits
    /// while another replica asks. Look again when the answer is that old.
    pub async fn look(self: &Arc<Self>, base_url: &str, most: Duration) -> TipLook {
        let look = self.find(base_url, most).await.unwrap_or(TipLook::Absent);
        let mut counts = lock(&self.counts);
        match &look {
            TipLook::Answer { .. } => counts.taken += 1,
            TipLook::Ask(_) => counts.asked += 1,
            TipLook::Absent => counts.alone += 1,
        }
        drop(counts);
        look
    }

    async fn find(
        self: &Arc<Self>,
        base_url: &str,
        most: Duration,
    ) -> Result<TipLook, EngineError> {
        let engine = &self.engine;
        let key = format!("{}:tip:{base_url}", engine.prefix);
        let id = fastrand::u128(..).to_be_bytes();
        let [most, lasts] = [most, CLAIM].map(|time| time.as_millis().to_string());
        let arguments = [&id[..], b"look", most.as_bytes(), lasts.as_bytes()];
        loop {
            let before = engine.clock.now();
            let keys = [key.as_bytes()];
            let answer = engine.call(&self.script, &keys, &arguments);
            let (outcome, age, answer): (String, u64, Vec<u8>) = answer.await?;
            match &*outcome {
                "answer" => {
                    let asked = before.before(Duration::from_millis(age));
                    return Ok(TipLook::Answer { asked, answer });
                }
                "ask" => {
                    let tips = self.clone();
                    return Ok(TipLook::Ask(TipClaim { tips, key, id }));
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }

    pub(super) fn snapshot(&self) -> TipsSnapshot {
        *lock(&self.counts)
    }
}

impl TipClaim {
    /// Stores what was answered, for the others.
    pub async fn store(self, answer: &[u8]) {
        let SharedTips { engine, script, .. } = &*self.tips;
        let arguments = [&self.id[..], b"store", answer];
        // Without an answer of the engine, another replica asks after a while.
        let _stored: Result<(String, u64, Vec<u8>), _> = engine
            .call(script, &[self.key.as_bytes()], &arguments)
            .await;
    }
}
