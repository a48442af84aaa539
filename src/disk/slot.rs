//! Opening the state on disk, at the start or later: a disk that is full or fails at the
//! start is tried again, so that nobody has to restart ordgate for it.
//!
//! Later attempts are made by a thread of their own, which may wait for the disk for as
//! long as it takes: neither maintenance nor a reload waits for it. What is purged
//! meanwhile is remembered ([`PurgeBacklog`]) and recorded as soon as there is a purge log.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use std::{fs, io, thread};

use tokio::sync::watch;

use super::backlog::PurgeBacklog;
use super::purge_log::PATIENCE;
use super::tier::PURGES;
use super::{Disk, OpenError, Tier};
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::clock::{Clock, Moment};
use crate::shared::journal::PurgesOnDisk;
use crate::state_dir::{ANSWERS, OpenedState, StateDir};
use crate::sync::lock;

/// How often opening is tried again.
const ATTEMPT_EVERY: Duration = Duration::from_secs(30);

/// The tier of a process, once it could be opened.
pub(crate) struct LateTier {
    directory: OpenedState,
    max_bytes: u64,
    tips: usize,
    clock: Clock,
    /// Never locked by anyone who waits for the disk.
    state: Mutex<State>,
    /// The same.
    recording: Mutex<Recording>,
    /// How many turns have ended.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    opened: Option<Arc<Tier>>,
    /// Whether a thread opens it, has a configuration use it, or removes its purge log.
    is_busy: bool,
    /// How many such turns have begun.
    begun: u64,
    /// Whether somebody has waited for the present turn for too long.
    is_late: bool,
    last_attempt: Option<Moment>,
    /// Whether what an earlier run has stored is absent for the next one.
    is_forgotten: bool,
    /// That of the newest configuration.
    newest: Weak<Slot>,
}

/// Where purges are recorded.
enum Recording {
    InMemory(PurgeBacklog),
    OnDisk(Arc<Tier>),
}

impl LateTier {
    /// A tier that is opened for the first [`DiskSlot`]. The arguments are those of
    /// [`Tier::open`].
    pub(crate) fn new(
        directory: OpenedState,
        max_bytes: u64,
        tips: usize,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            directory,
            max_bytes,
            tips,
            clock,
            state: Mutex::default(),
            recording: Mutex::new(Recording::InMemory(PurgeBacklog::default())),
            ended: watch::Sender::default(),
        })
    }

    /// Begins a turn, if there is none. Then [`work`](Self::work) or [`end`](Self::end) is
    /// to be called.
    fn begin_turn(&self, state: &mut State) -> bool {
        let is_free = !std::mem::replace(&mut state.is_busy, true);
        state.begun += u64::from(is_free);
        is_free
    }

    fn end(&self, mut state: MutexGuard<'_, State>) {
        state.is_busy = false;
        state.is_late = false;
        let begun = state.begun;
        drop(state);
        self.ended.send_replace(begun);
    }

    /// Uses a configuration from now on. Returns whether it may wait for that: as the first
    /// one, and once the tier is open. A thread that is busy sees the new one.
    fn register(&self, slot: &Arc<Slot>) -> bool {
        let mut state = self.state();
        let is_first = state.newest.strong_count() == 0 && state.last_attempt.is_none();
        state.newest = Arc::downgrade(slot);
        self.backlog(PurgeBacklog::note_configuration);
        is_first || state.opened.is_some()
    }

    /// Has a thread of its own do what is due, if anything is.
    fn maintain(self: &Arc<Self>) {
        let mut state = self.state();
        let is_due = state.opened.is_some() || self.may_open(&state) || self.must_forget(&state);
        if !is_due || !self.begin_turn(&mut state) {
            return;
        }
        drop(state);
        let late = self.clone();
        let thread = thread::Builder::new().name("ordgate-disk-open".to_owned());
        if let Err(error) = thread.spawn(move || late.work_or_log()) {
            tracing::warn!(%error, "no thread to open what is on disk");
            self.end(self.state());
        }
    }

    /// Opens the tier if that may be tried, and has the newest configuration use it. Where
    /// something was purged and it cannot be opened, what an earlier run has stored is made
    /// absent. It waits for the disk, as the only thread that is busy.
    fn work(&self) -> io::Result<()> {
        let mut state = self.state();
        if self.may_open(&state)
            && let Some(directory) = self.directory.directory()
        {
            let is_first = state.last_attempt.replace(self.clock.now()).is_none();
            drop(state);
            let opened = self.attempt(directory, is_first);
            state = self.state();
            state.opened = opened;
        }
        let mut forgotten = Ok(());
        if self.must_forget(&state) {
            drop(state);
            forgotten = self.forget();
            state = self.state();
            state.is_forgotten = forgotten.is_ok() && self.directory.directory().is_some();
        }
        // Until there is no newer one: a reload does not wait for this thread.
        while let Some(tier) = state.opened.clone()
            && let Some(slot) = state.newest.upgrade()
            && slot.disk.get().is_none()
        {
            drop(state);
            self.begin(&tier, &slot);
            state = self.state();
        }
        self.end(state);
        forgotten
    }

    /// Waits, briefly, until all purges and removals so far would outlive the process, or
    /// what an earlier run has stored is absent for the next one. If the disk takes too
    /// long, whoever has caused them is answered all the same.
    async fn recorded(self: &Arc<Self>) {
        let forgotten = self.forgotten();
        if tokio::time::timeout(PATIENCE, forgotten).await.is_err() {
            let mut state = self.state();
            // Nobody else waits for it as long.
            state.is_late = state.is_busy;
        }
        if let Some(tier) = self.recorder() {
            tier.recorded().await;
        }
    }

    /// Waits until a turn that has begun later than this has ended, if one must.
    async fn forgotten(self: &Arc<Self>) {
        let mut ended = self.ended.subscribe();
        let begun = self.state().begun;
        while *ended.borrow_and_update() <= begun {
            let is_turn = {
                let mut state = self.state();
                if state.is_late || !self.must_forget(&state) {
                    return;
                }
                self.begin_turn(&mut state)
            };
            if is_turn {
                let late = self.clone();
                // What it returns is in the log, and shown by the next attempt.
                drop(tokio::task::spawn_blocking(move || late.work_or_log()).await);
            } else if ended.changed().await.is_err() {
                return;
            }
        }
    }

    fn work_or_log(&self) {
        if let Err(error) = self.work() {
            tracing::debug!(%error, "what was purged may be on disk");
        }
    }

    fn attempt(&self, directory: &StateDir, is_first: bool) -> Option<Arc<Tier>> {
        match self.open(directory) {
            Ok(tier) => return Some(tier),
            Err(error) if is_first => tracing::error!(
                %error,
                "responses are neither read from disk nor kept there: the next attempts are {} s apart, until one succeeds",
                ATTEMPT_EVERY.as_secs()
            ),
            Err(error) => tracing::debug!(%error, "responses on disk cannot be used still"),
        }
        None
    }

    fn open(&self, directory: &StateDir) -> Result<Arc<Tier>, OpenError> {
        let failed = |error| OpenError::File {
            path: directory.path().join(ANSWERS),
            error,
        };
        let path = directory.subdirectory(ANSWERS).map_err(failed)?;
        if directory.was_purged().map_err(failed)? {
            discard(directory).map_err(failed)?;
        }
        Tier::open(&path, self.max_bytes, self.tips, self.clock.clone())
    }

    /// Has a configuration use the tier.
    fn begin(&self, tier: &Arc<Tier>, slot: &Arc<Slot>) {
        let Some(source) = &slot.source else {
            return;
        };
        let disk = (source.make)(tier);
        tier.learn(&disk.routes, &disk.tips);
        // Before the blocks of an earlier run are read: a reorg may have come meanwhile.
        let mut recording = lock(&self.recording);
        if let Recording::InMemory(backlog) = &mut *recording {
            std::mem::take(backlog).hand_over(tier);
            *recording = Recording::OnDisk(tier.clone());
        }
        drop(recording);
        tier.begin(&disk);
        let _first = slot.disk.set(disk);
    }

    /// Makes what an earlier run has stored absent, or, where another process uses the
    /// directory, what that one has for the next.
    fn forget(&self) -> io::Result<()> {
        let Some(directory) = self.directory.directory() else {
            return self.directory.mark_purged();
        };
        match remove_log(directory) {
            Ok(()) => {
                tracing::warn!(
                    "a purge could not be recorded, since responses on disk cannot be used: all that were stored there are discarded"
                );
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn may_open(&self, state: &State) -> bool {
        let now = self.clock.now();
        let is_due = |last: Moment| last + ATTEMPT_EVERY <= now;
        let is_due = state.last_attempt.is_none_or(is_due) || self.must_forget(state);
        state.opened.is_none() && is_due && self.directory.directory().is_some()
    }

    fn must_forget(&self, state: &State) -> bool {
        let has_purged = self.backlog(|backlog| !backlog.is_empty());
        state.opened.is_none() && !state.is_forgotten && has_purged == Some(true)
    }

    fn backlog<T>(&self, with: impl FnOnce(&mut PurgeBacklog) -> T) -> Option<T> {
        match &mut *lock(&self.recording) {
            Recording::InMemory(backlog) => Some(with(backlog)),
            Recording::OnDisk(_) => None,
        }
    }

    /// The tier, once purges are recorded there.
    fn recorder(&self) -> Option<Arc<Tier>> {
        match &*lock(&self.recording) {
            Recording::OnDisk(tier) => Some(tier.clone()),
            Recording::InMemory(_) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl PurgeRecorder for LateTier {
    fn purge(&self, number: u64, purge: &Purge) {
        match &mut *lock(&self.recording) {
            Recording::InMemory(backlog) => backlog.purge(number, purge),
            Recording::OnDisk(tier) => tier.purge(number, purge),
        }
    }

    fn remove(&self, number: u64, key: &[u8]) {
        match &mut *lock(&self.recording) {
            Recording::InMemory(backlog) => backlog.remove(number, key),
            Recording::OnDisk(tier) => tier.remove(number, key),
        }
    }
}

/// Makes what is stored absent after a process has purged that did not use the directory.
fn discard(directory: &StateDir) -> io::Result<()> {
    tracing::warn!(
        "a process that ran beside another one has purged: all responses that were stored on disk are discarded"
    );
    match remove_log(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    directory.forget_purged()
}

/// Removes the record of purges, without which all that is stored is absent.
fn remove_log(directory: &StateDir) -> io::Result<()> {
    let answers = directory.path().join(ANSWERS);
    let removed = fs::remove_file(answers.join(PURGES));
    if let Err(error) = &removed
        && error.kind() != io::ErrorKind::NotFound
    {
        return removed;
    }
    // Also where it is absent: an earlier attempt may have failed here.
    match fs::File::open(answers) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return removed,
        answers => answers?.sync_all()?,
    }
    removed
}

impl PurgesOnDisk for DiskSlot {
    fn sync_purges(&self) -> io::Result<()> {
        Self::sync_purges(self)
    }
}

/// The state on disk of one configuration, if there is any, and once it could be opened.
#[derive(Clone, Default)]
pub(crate) struct DiskSlot(Arc<Slot>);

#[derive(Default)]
struct Slot {
    disk: OnceLock<Arc<Disk>>,
    source: Option<Source>,
}

/// Where the tier is from, and what makes a configuration's state of it.
struct Source {
    tier: Arc<LateTier>,
    make: Make,
}

type Make = Box<dyn Fn(&Arc<Tier>) -> Arc<Disk> + Send + Sync>;

impl DiskSlot {
    /// That of a configuration, for which `make` makes it.
    pub(crate) fn new(
        tier: Arc<LateTier>,
        make: impl Fn(&Arc<Tier>) -> Arc<Disk> + Send + Sync + 'static,
    ) -> Self {
        let make = Box::new(make);
        let slot = Arc::new(Slot {
            disk: OnceLock::new(),
            source: Some(Source {
                tier: tier.clone(),
                make,
            }),
        });
        let waits = tier.register(&slot);
        let slot = Self(slot);
        if waits {
            slot.open();
        }
        slot
    }

    /// The state on disk.
    pub(crate) fn get(&self) -> Option<&Arc<Disk>> {
        self.0.disk.get()
    }

    /// Has it opened where it could not be opened before. It does not wait for that.
    pub(crate) fn maintain(&self) {
        let missing = self.0.source.as_ref().filter(|_| self.get().is_none());
        if let Some(source) = missing {
            source.tier.maintain();
        }
    }

    /// Opens it where it could not be opened before. It waits for the disk.
    pub(crate) fn open(&self) {
        let missing = self.0.source.as_ref().filter(|_| self.get().is_none());
        if let Some(Source { tier, .. }) = missing
            && tier.begin_turn(&mut tier.state())
        {
            tier.work_or_log();
        }
    }

    /// Makes all purges so far survive the machine's end, or what they could mean absent.
    /// It waits for the disk.
    ///
    /// # Errors
    /// If that fails: what was purged may come back after a restart.
    pub(crate) fn sync_purges(&self) -> io::Result<()> {
        let Some(source) = &self.0.source else {
            return Ok(());
        };
        let late = &source.tier;
        if let Some(tier) = late.recorder() {
            return tier.sync_purges();
        }
        if !late.begin_turn(&mut late.state()) {
            return Err(io::Error::other("it is being opened"));
        }
        let forgotten = late.work();
        match late.recorder() {
            Some(tier) => tier.sync_purges(),
            None => forgotten,
        }
    }

    /// Waits, briefly, until all purges and removals so far would outlive the process, or
    /// what they could mean is absent after its end.
    pub(crate) async fn recorded(&self) {
        if let Some(source) = &self.0.source {
            source.tier.recorded().await;
        }
    }

    /// How long a request may wait for it at most: for its reads, and for the record of a
    /// purge that its answer causes, also where it is only being opened.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.0
            .source
            .as_ref()
            .map_or(Duration::ZERO, |_| super::reads::PATIENCE + 2 * PATIENCE)
    }

    /// Where the tier is from, for the next configuration.
    pub(crate) fn tier(&self) -> Option<&Arc<LateTier>> {
        self.0.source.as_ref().map(|source| &source.tier)
    }
}
