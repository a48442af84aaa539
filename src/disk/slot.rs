//! Opening the state on disk, at the start or later: a disk that is full or fails at the
//! start is tried again, so that nobody has to restart ordgate for it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{fs, io};

use super::tier::PURGES;
use super::{Disk, OpenError, Tier};
use crate::clock::{Clock, Moment};
use crate::state_dir::StateDir;
use crate::sync::lock;

/// The directory in the state directory.
const ANSWERS: &str = "answers";

/// How often opening is tried again.
const ATTEMPT_EVERY: Duration = Duration::from_secs(30);

/// The tier of a process, once it could be opened.
pub(crate) struct LateTier {
    directory: Arc<StateDir>,
    max_bytes: u64,
    tips: usize,
    clock: Clock,
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
struct Attempts {
    opened: Option<Arc<Tier>>,
    last: Option<Moment>,
    /// Whether what an earlier run has stored is absent for the next one.
    is_forgotten: bool,
}

impl LateTier {
    /// A tier that is opened by the first [`get`](Self::get). The arguments are those of
    /// [`Tier::open`].
    pub(crate) fn new(
        directory: Arc<StateDir>,
        max_bytes: u64,
        tips: usize,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            directory,
            max_bytes,
            tips,
            clock,
            attempts: Mutex::default(),
        })
    }

    /// The tier; `None` if it cannot be opened, or could not be a short time ago. A fault
    /// is no reason not to serve.
    fn get(&self) -> Option<Arc<Tier>> {
        let mut attempts = lock(&self.attempts);
        let now = self.clock.now();
        let is_due = (attempts.last).is_none_or(|last| last + ATTEMPT_EVERY <= now);
        if attempts.opened.is_none() && is_due {
            let is_first = attempts.last.replace(now).is_none();
            match self.open() {
                Ok(tier) => attempts.opened = Some(tier),
                Err(error) if is_first => tracing::error!(
                    %error,
                    "responses are neither read from disk nor kept there: the next attempts are {} s apart, until one succeeds",
                    ATTEMPT_EVERY.as_secs()
                ),
                Err(error) => tracing::debug!(%error, "responses on disk cannot be used still"),
            }
        }
        attempts.opened.clone()
    }

    /// Removes the purge log of an earlier run, unless this one records its purges there.
    /// Without it, all that is stored is absent.
    fn forget(&self) -> io::Result<()> {
        let mut attempts = lock(&self.attempts);
        if attempts.opened.is_some() || attempts.is_forgotten {
            return Ok(());
        }
        let log = self.directory.path().join(ANSWERS).join(PURGES);
        match fs::remove_file(log) {
            Ok(()) => tracing::warn!(
                "a purge could not be recorded, since responses on disk cannot be used: all that were stored there are discarded"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        attempts.is_forgotten = true;
        Ok(())
    }

    fn open(&self) -> Result<Arc<Tier>, OpenError> {
        let created = self.directory.subdirectory(ANSWERS);
        let path = created.map_err(|error| OpenError::File {
            path: self.directory.path().join(ANSWERS),
            error,
        })?;
        Tier::open(&path, self.max_bytes, self.tips, self.clock.clone())
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
        let slot = Self(Arc::new(Slot {
            disk: OnceLock::new(),
            source: Some(Source { tier, make }),
        }));
        slot.open();
        slot
    }

    /// The state on disk.
    pub(crate) fn get(&self) -> Option<&Arc<Disk>> {
        self.0.disk.get()
    }

    /// Opens it where it could not be opened before. It waits for the disk.
    pub(crate) fn open(&self) {
        let missing = self.0.source.as_ref().filter(|_| self.get().is_none());
        if let Some(Source { tier, make }) = missing
            && let Some(tier) = tier.get()
        {
            self.0.disk.get_or_init(|| make(&tier));
        }
    }

    /// While it cannot be opened, purges are not recorded: this makes what an earlier run
    /// has stored absent. It waits for the disk.
    pub(crate) fn forget(&self) -> io::Result<()> {
        let missing = self.0.source.as_ref().filter(|_| self.get().is_none());
        missing.map_or(Ok(()), |source| source.tier.forget())
    }

    /// Where the tier is from, for the next configuration.
    pub(crate) fn tier(&self) -> Option<&Arc<LateTier>> {
        self.0.source.as_ref().map(|source| &source.tier)
    }
}
