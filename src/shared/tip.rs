//! One replica asks a status path for all.
//!
//! Whoever needs a status claims it in the engine, asks, and stores the answer; the others
//! take that, and look again when it is too old. Without an answer of the engine each
//! replica asks by itself.

use std::sync::Arc;
use std::time::Duration;

use super::engine::{Engine, Script};
use crate::clock::Moment;

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

/// The statuses of all replicas.
pub struct SharedTips {
    engine: Arc<Engine>,
    script: Script,
}

impl SharedTips {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            script: Script::new(SCRIPT),
        })
    }

    /// Looks for the status of a base URL that was asked less than `most` ago, and waits
    /// while another replica asks. Look again when the answer is that old.
    pub async fn look(self: &Arc<Self>, base_url: &str, most: Duration) -> TipLook {
        let key = format!("ordgate:tip:{base_url}");
        let id = fastrand::u128(..).to_be_bytes();
        let [most, lasts] = [most, CLAIM].map(|time| time.as_millis().to_string());
        let arguments = [&id[..], b"look", most.as_bytes(), lasts.as_bytes()];
        loop {
            let before = self.engine.clock.now();
            let answer = self.engine.call(&self.script, &[&key], &arguments).await;
            let Ok((outcome, age, answer)): Result<(String, u64, Vec<u8>), _> = answer else {
                return TipLook::Absent;
            };
            match &*outcome {
                "answer" => {
                    let asked = before.before(Duration::from_millis(age));
                    return TipLook::Answer { asked, answer };
                }
                "ask" => {
                    let tips = self.clone();
                    return TipLook::Ask(TipClaim { tips, key, id });
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }
}

impl TipClaim {
    /// Stores what was answered, for the others.
    pub async fn store(self, answer: &[u8]) {
        let SharedTips { engine, script, .. } = &*self.tips;
        let arguments = [&self.id[..], b"store", answer];
        // Without an answer of the engine, another replica asks after a while.
        let _stored: Result<(String, u64, Vec<u8>), _> =
            engine.call(script, &[&self.key], &arguments).await;
    }
}
