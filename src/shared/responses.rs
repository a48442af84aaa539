//! Responses that replicas keep for each other.
//!
//! A replica that has no response looks here before it fetches one. One of them fetches, and
//! the others wait for its response, for two seconds (`fill_wait`) at most. The leader may be
//! killed: its lock lasts no longer than that, and whoever looks next leads.
//!
//! A stored response names the purges that were applied before its fetch began
//! ([`Generation`]). Only one with the present generation is used: after a purge all others
//! are fetched anew. Whether one is final here, or of the same tip, its reader decides.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::{Engine, Script};
use super::purges::Generation;
use crate::sync::Outcomes;

const FILL: &str = include_str!("scripts/fill.lua");
const SETTLE: &str = include_str!("scripts/settle.lua");

/// How often a request looks whether another replica has fetched its response.
const POLL: Duration = Duration::from_millis(20);
/// For so long nobody waits for a fetch, after one whose response was not stored.
const NOT_STORED: Duration = Duration::from_secs(5);
/// Larger responses are not stored: they would hold up others on the connection.
const LARGEST: usize = 1 << 20;
/// The length of an id.
const ID: usize = 16;

/// A response as replicas keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedResponse {
    /// The tip at which it was fetched, in the reader's encoding; empty if there is none.
    pub tip: Vec<u8>,
    /// The response, in the reader's encoding.
    pub value: Vec<u8>,
}

/// What a look-up has found.
pub enum LookUp<T> {
    /// A response that can be used.
    Found(T),
    /// This replica fetches it, and others wait.
    Lead(FillLock),
    /// There is none, and nobody waits for it: fetch it.
    Alone,
}

/// A fetch for which other replicas wait. Dropped, it lets another one lead.
pub struct FillLock {
    responses: Arc<Responses>,
    key: Vec<u8>,
    id: [u8; ID],
    generation: Generation,
    is_settled: bool,
}

/// The responses of all replicas.
pub struct Responses {
    engine: Arc<Engine>,
    fill: Script,
    settle: Script,
    fill_wait: Duration,
    pub(super) outcomes: Outcomes,
}

impl Responses {
    pub(super) fn new(engine: &Arc<Engine>, fill_wait: Duration) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            fill: Script::new(FILL),
            settle: Script::new(SETTLE),
            fill_wait,
            outcomes: Outcomes::of(["found", "led", "alone", "waited"]),
        })
    }

    /// Looks up a response, and waits while another replica fetches it. `generation` was
    /// taken before, and before what is stored here was looked at; `usable` makes what is
    /// found of a response, if it is final here or of the present tip.
    pub async fn look_up<T>(
        self: &Arc<Self>,
        key: &[u8],
        generation: Generation,
        usable: impl Fn(&SharedResponse) -> Option<T>,
    ) -> LookUp<T> {
        let look_up = self.wait(key, generation, usable);
        let in_time = tokio::time::timeout(self.fill_wait.max(POLL), look_up).await;
        let found = in_time.unwrap_or(LookUp::Alone);
        self.outcomes.count(match &found {
            LookUp::Found(_) => "found",
            LookUp::Lead(_) => "led",
            LookUp::Alone => "alone",
        });
        found
    }

    async fn wait<T>(
        self: &Arc<Self>,
        key: &[u8],
        generation: Generation,
        usable: impl Fn(&SharedResponse) -> Option<T>,
    ) -> LookUp<T> {
        let id = fastrand::u128(..).to_be_bytes();
        let keys = keys(key);
        // It ends before those who wait for it give up, so that one of them leads.
        let lasts = self
            .fill_wait
            .saturating_sub(POLL * 2)
            .as_millis()
            .max(1)
            .to_string();
        let (mut rejected, mut has_waited) = (Vec::new(), false);
        loop {
            let arguments = [&id[..], &rejected, lasts.as_bytes()];
            let answer = self.engine.call(&self.fill, &keys, &arguments).await;
            let Ok((outcome, stored)): Result<(String, Vec<u8>), _> = answer else {
                return LookUp::Alone;
            };
            match &*outcome {
                "have" => {
                    let response = decode(&stored).filter(|(of, _)| *of == generation);
                    if let Some(found) = response.and_then(|(_, response)| usable(&response)) {
                        return LookUp::Found(found);
                    }
                    rejected = stored.get(..ID).unwrap_or(&stored).to_vec();
                    continue;
                }
                "lead" => {
                    return LookUp::Lead(FillLock {
                        responses: self.clone(),
                        key: key.to_vec(),
                        id,
                        generation,
                        is_settled: false,
                    });
                }
                "follow" if !self.fill_wait.is_zero() => {}
                _ => return LookUp::Alone,
            }
            if !has_waited {
                self.outcomes.count("waited");
                has_waited = true;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stores a response that was not led, such as one that has turned final. `generation` was
    /// taken before its fetch began, or before it was last found to be right.
    pub async fn put(
        &self,
        key: &[u8],
        generation: Generation,
        response: &SharedResponse,
        lasts: Duration,
    ) {
        let id = fastrand::u128(..).to_be_bytes();
        let stored = encode(&id, generation, response);
        self.end(key, &id, &stored, lasts).await;
    }

    async fn end(&self, key: &[u8], id: &[u8], stored: &[u8], lasts: Duration) {
        let ms = lasts.as_millis().to_string();
        let arguments = [id, stored, ms.as_bytes()];
        // Without an answer the lock expires.
        let _ended: Result<(), _> = self.engine.call(&self.settle, &keys(key), &arguments).await;
    }
}

/// The keys of a response, and of the lock of its fetch.
fn keys(key: &[u8]) -> [Vec<u8>; 2] {
    [&b"ordgate:response:"[..], b"ordgate:fill:"].map(|kind| [kind, key].concat())
}

impl FillLock {
    /// Stores the response for so long. One that is too large is not stored.
    pub async fn put(self, response: &SharedResponse, lasts: Duration) {
        if response.value.len() > LARGEST || lasts.as_millis() == 0 {
            return self.not_stored().await;
        }
        let stored = encode(&self.id, self.generation, response);
        self.settle(&stored, lasts).await;
    }

    /// The response is one that is not stored: for a while nobody waits for a fetch of it.
    pub async fn not_stored(self) {
        self.settle(&[], NOT_STORED).await;
    }

    async fn settle(mut self, stored: &[u8], lasts: Duration) {
        self.is_settled = true;
        self.responses.end(&self.key, &self.id, stored, lasts).await;
    }
}

impl Drop for FillLock {
    fn drop(&mut self) {
        if !self.is_settled {
            let (responses, key, id) = (self.responses.clone(), self.key.clone(), self.id);
            tokio::spawn(async move { responses.end(&key, &id, &[], Duration::ZERO).await });
        }
    }
}

/// The id, and the rest by postcard.
fn encode(id: &[u8; ID], generation: Generation, response: &SharedResponse) -> Vec<u8> {
    // It cannot fail in memory; what is empty would be no response.
    postcard::to_extend(&(generation, response), id.to_vec()).unwrap_or_default()
}

fn decode(stored: &[u8]) -> Option<(Generation, SharedResponse)> {
    postcard::from_bytes(stored.get(ID..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_response_is_read_back_and_a_cut_one_is_not() {
        let generation = Generation { life: 7, number: 9 };
        let response = SharedResponse {
            tip: b"tip".to_vec(),
            value: b"value".to_vec(),
        };
        let stored = encode(&[1; ID], generation, &response);
        assert_eq!(decode(&stored), Some((generation, response)));
        for length in 0..stored.len() {
            assert_eq!(decode(&stored[..length]), None, "{length}");
        }
    }
}
