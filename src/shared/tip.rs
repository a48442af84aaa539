//! Which replica probes a tip, and what it has found. One of them holds a lease and probes;
//! the others read its observations, and probe themselves while there are none.
//!
//! There is one lease for each status path of each endpoint ([`TipName`]). So replicas
//! that use different endpoints of an upstream do not follow each other.
//!
//! Every replica asks several times a second, and the holder renews its lease by that. A
//! lease lasts [`LEASE`] from before the call by the holder's clock, and longer by the
//! engine's. If two replicas probe all the same, only a request is wasted: nothing depends
//! on the lease.
//!
//! How old an observation is must not be understated: what it confirms would be fresh for
//! too long. Each call returns the engine's time, and the report of a probe has the time of
//! the call before the probe. So the observation is no older than that, however long the
//! report took on its way, and no two clocks are compared. An engine that was restarted,
//! or whose clock was set back, forgets all of it (`engine/scripts/tip.lua`); what a clock
//! is set back between two calls, a few tenths of a second, is not noticed.

#[cfg(test)]
mod model;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use aws_lc_rs::hmac;

use super::allowance::ProcessId;
use super::engine::server::{EngineScript, EngineUrl, RedisEngine};
use super::engine::{EngineValue, SharedError};
use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// The script.
const TIP: &str = include_str!("engine/scripts/tip.lua");

/// How long a lease lasts after the call that it was given to. A replica that dies is
/// replaced after that; a replica renews it several times meanwhile.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// How much longer it lasts for others.
const LEASE_MARGIN: Duration = Duration::from_millis(100);

/// The longest tag of a status that is sent to others. A hash in quotation marks has 66
/// bytes.
const MOST_TAG_BYTES: usize = 256;

/// What an age is rounded up by: times are whole milliseconds, and two clocks may differ by
/// 100 ppm for ten seconds.
const AGE_ROUNDING: Duration = Duration::from_millis(2);

/// The bytes of a name.
const NAME_BYTES: usize = 16;

/// A status path of an endpoint, as the engine knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TipName(String);

/// Who probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TipProber {
    /// This replica, which holds the lease.
    Own,
    /// Another one.
    Other,
    /// None: this one has not asked for the lease.
    Free,
}

/// The engine's answer before a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TipNews {
    pub(crate) prober: TipProber,
    pub(crate) call: CallTime,
    pub(crate) observation: Option<TipObservation>,
}

/// When the engine has answered a call, by its own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallTime {
    life: Box<str>,
    millis: u64,
}

/// What the last probe of any replica has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TipObservation {
    /// Tells it from others.
    pub(crate) id: u64,
    /// How old it is at the most.
    pub(crate) age: Duration,
    pub(crate) height: u32,
    pub(crate) tag: Option<Vec<u8>>,
}

/// What replicas know of each other's probes.
pub(crate) struct TipLeases {
    prefix: Box<str>,
    process: ProcessId,
    url: EngineUrl,
    timeout: Mutex<Duration>,
    script: EngineScript,
    /// Made by the first call, on the runtime of the probes.
    engine: OnceLock<Arc<RedisEngine>>,
    clock: Clock,
    state: Mutex<LeaseState>,
}

#[derive(Default)]
struct LeaseState {
    is_closed: bool,
    /// Until when each lease of this replica lasts.
    held: BTreeMap<TipName, Moment>,
    /// By the name of the tip in the configuration.
    shares: BTreeMap<Box<str>, TipShare>,
}

/// What a replica does for a tip, as `/status` and metrics show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TipShare {
    /// Whether this replica probes for all.
    pub is_holder: bool,
    /// Whether another replica probes.
    pub is_follower: bool,
    /// The observations of other replicas that were applied here.
    pub followed: u64,
}

impl TipName {
    /// The name of a status path, whose member is the height. Nothing can be learned from
    /// it of the URL, which may have a password.
    pub(crate) fn new(prefix: &str, url: &str, path: &str, member: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, url.as_bytes());
        let mut message = hmac::Context::with_key(&key);
        for part in ["ordgate tip 1", prefix, path, member] {
            message.update(&(part.len() as u64).to_le_bytes());
            message.update(part.as_bytes());
        }
        let digest = message.sign();
        let digest = digest.as_ref().iter().take(NAME_BYTES);
        Self(digest.map(|byte| format!("{byte:02x}")).collect())
    }
}

impl CallTime {
    /// The id of the observation that is reported with it.
    pub(crate) const fn id(&self) -> u64 {
        self.millis
    }
}

impl TipNews {
    fn read(answer: &EngineValue) -> Option<Self> {
        let fields = answer.list()?;
        let prober = match fields.first()?.text()? {
            "own" => TipProber::Own,
            "other" => TipProber::Other,
            "free" => TipProber::Free,
            _ => return None,
        };
        let call = CallTime {
            life: fields.get(1)?.text()?.into(),
            millis: fields.get(2)?.number()?,
        };
        let observation = match &fields[3..] {
            [] => None,
            [id, age, height, tag] => Some(TipObservation {
                id: id.number()?,
                age: Duration::from_millis(age.number()?) + AGE_ROUNDING,
                height: u32::try_from(height.number()?).ok()?,
                tag: match tag.bytes()?.split_first() {
                    None => None,
                    Some((b't', tag)) if may_be_tag(tag) => Some(tag.to_vec()),
                    Some(_) => return None,
                },
            }),
            _ => return None,
        };
        Some(Self {
            prober,
            call,
            observation,
        })
    }
}

/// Whether a tag can be that of a response: it is printable, and not too long.
fn may_be_tag(tag: &[u8]) -> bool {
    let is_printable = |byte: &u8| *byte >= b' ' && *byte != 0x7f;
    tag.len() <= MOST_TAG_BYTES && tag.iter().all(is_printable)
}

/// The arguments of the script.
fn ask_arguments(process: ProcessId, claims: bool) -> Vec<Vec<u8>> {
    let lease = (LEASE + LEASE_MARGIN).as_millis().to_string();
    let claims = if claims { "1" } else { "0" };
    let all = [process.hex(), "ask".into(), lease, claims.into()];
    all.map(String::into_bytes).into()
}

fn report_arguments(
    process: ProcessId,
    call: &CallTime,
    height: u32,
    tag: Option<&[u8]>,
) -> Vec<Vec<u8>> {
    let life = call.life.to_string();
    let texts = [
        process.hex(),
        "report".into(),
        life,
        call.millis.to_string(),
        height.to_string(),
    ];
    let tag = tag.map(|tag| [b"t", tag].concat()).unwrap_or_default();
    let texts = texts.into_iter().map(String::into_bytes);
    texts.chain([tag]).collect()
}

fn leave_arguments(process: ProcessId) -> Vec<Vec<u8>> {
    vec![process.hex().into_bytes(), b"leave".to_vec()]
}

impl TipLeases {
    pub(crate) fn new(settings: &super::Settings, process: ProcessId, clock: &Clock) -> Arc<Self> {
        Arc::new(Self {
            prefix: settings.prefix.as_str().into(),
            process,
            url: settings.url.clone(),
            timeout: Mutex::new(settings.timeout),
            script: EngineScript::new(TIP),
            engine: OnceLock::new(),
            clock: clock.clone(),
            state: Mutex::default(),
        })
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        *lock(&self.timeout) = timeout;
        if let Some(engine) = self.engine.get() {
            engine.set_timeout(timeout);
        }
    }

    /// Forgets what this replica has done for other tips than these.
    pub(super) fn retain<'t>(&self, tips: impl Iterator<Item = &'t str>) {
        let tips: Vec<_> = tips.collect();
        let mut state = lock(&self.state);
        state.shares.retain(|name, _| tips.contains(&&**name));
    }

    /// What the engine's keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Asks who probes, and what was found last. `claims`: this replica would probe.
    ///
    /// # Errors
    /// Without an answer in time.
    pub(crate) async fn ask(&self, name: &TipName, claims: bool) -> Result<TipNews, SharedError> {
        let claims = claims && !lock(&self.state).is_closed;
        let before = self.clock.now();
        let answer = self.run(name, &ask_arguments(self.process, claims)).await;
        let news = answer.and_then(|answer| {
            let news = TipNews::read(&answer);
            news.ok_or_else(|| self.engine().unreadable())
        });
        let mut state = lock(&self.state);
        match &news {
            Ok(news) if news.prober == TipProber::Own => {
                state.held.insert(name.clone(), before + LEASE);
            }
            Ok(_) => drop(state.held.remove(name)),
            // It lasts until it ends.
            Err(_) => {}
        }
        news
    }

    /// Whether this replica holds a lease now.
    pub(crate) fn holds(&self, name: &TipName, now: Moment) -> bool {
        let state = lock(&self.state);
        state.held.get(name).is_some_and(|until| now < *until)
    }

    /// Lets the others know what a probe has found that began after this call. A later
    /// observation is not replaced.
    ///
    /// # Errors
    /// Without an answer in time.
    pub(crate) async fn report(
        &self,
        name: &TipName,
        call: &CallTime,
        height: u32,
        tag: Option<&[u8]>,
    ) -> Result<(), SharedError> {
        if tag.is_some_and(|tag| !may_be_tag(tag)) {
            return Ok(());
        }
        let arguments = report_arguments(self.process, call, height, tag);
        self.run(name, &arguments).await.map(drop)
    }

    /// Gives a lease back, if this replica holds it.
    pub(crate) async fn leave(&self, name: &TipName) {
        if lock(&self.state).held.remove(name).is_some() {
            // Without an answer, it ends by itself.
            let _ended = self.run(name, &leave_arguments(self.process)).await;
        }
    }

    /// Gives all leases back, and takes none from now on.
    pub(crate) async fn close(&self) {
        let held: Vec<_> = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.held.keys().cloned().collect()
        };
        for name in held {
            self.leave(&name).await;
        }
    }

    /// Notes what this replica does for a tip.
    pub(crate) fn note_prober(&self, tip: &str, prober: Option<TipProber>) {
        self.update(tip, |share| {
            share.is_holder = prober == Some(TipProber::Own);
            share.is_follower = prober == Some(TipProber::Other);
        });
    }

    /// Whether another replica probes a tip, by the last answer of the engine.
    pub(crate) fn is_followed(&self, tip: &str) -> bool {
        let state = lock(&self.state);
        state.shares.get(tip).is_some_and(|share| share.is_follower)
    }

    /// Notes that an observation of another replica was applied.
    pub(crate) fn note_followed(&self, tip: &str) {
        self.update(tip, |share| share.followed += 1);
    }

    fn update(&self, tip: &str, update: impl FnOnce(&mut TipShare)) {
        update(lock(&self.state).shares.entry(tip.into()).or_default());
    }

    /// What this replica does for each tip.
    pub(crate) fn shares(&self) -> BTreeMap<Box<str>, TipShare> {
        lock(&self.state).shares.clone()
    }

    fn engine(&self) -> &RedisEngine {
        let new = || RedisEngine::new(self.url.clone(), *lock(&self.timeout), self.clock.clone());
        self.engine.get_or_init(new)
    }

    async fn run(&self, name: &TipName, arguments: &[Vec<u8>]) -> Result<EngineValue, SharedError> {
        let key = format!("{{{}:t:{}}}", self.prefix, name.0);
        self.engine().run(&self.script, &[&key], arguments).await
    }
}

#[cfg(test)]
mod tests;
