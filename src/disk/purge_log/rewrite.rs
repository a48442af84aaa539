//! The file of the purge log is written anew, or removed.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::file::{self, LogFile};
use super::records::PurgeRecords;
use super::state::LogStanding;
use super::{LogId, PurgeLog};
use crate::sync::write;

impl PurgeLog {
    /// Writes a file with all that is remembered, in place of the one there is, if any.
    ///
    /// # Errors
    /// If that fails. Then it goes on with the one there is, if that lacks nothing;
    /// otherwise there is none.
    pub(super) fn write_anew(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let mut state = write(&self.state);
        let LogStanding::Recording(id) = state.standing else {
            drop(state);
            return self.discard_file(file);
        };
        let bytes = file::to_bytes(id, &state.records);
        let mark = file::mark(&state.records);
        let position = state.position();
        // They are among the records.
        let (queued, pushed) = state.take_queued();
        let was_behind = std::mem::replace(&mut state.is_behind, false);
        drop(state);
        let created = LogFile::create(&self.path, bytes);
        // Otherwise the new file may be in place, though that is no longer certain.
        if let Err(error) = &created
            && let Some(open) = file.as_mut().filter(|open| open.is_at(&self.path))
            && !was_behind
            && open.append(&queued, &mark).is_ok()
        {
            self.have_recorded(pushed);
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        self.change_file(file, created, (pushed, position))
    }

    /// Writes the file anew where it is no longer there. Wherever it is, no run believes it.
    pub(super) fn replace_if_removed(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        if file.as_ref().is_none_or(|open| open.is_at(&self.path)) {
            return Ok(());
        }
        self.report(&"the purge log was removed");
        self.discard_file(file)?;
        self.write_anew(file)
    }

    /// Begins a new log.
    pub(super) fn begin(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let id = LogId::random()?;
        let mut state = write(&self.state);
        let position = state.position();
        let routes = std::mem::take(&mut state.records.routes);
        state.records = PurgeRecords::begin(position, routes);
        let bytes = file::to_bytes(id, &state.records);
        let (_lost, pushed) = state.take_queued();
        state.is_behind = false;
        state.standing = LogStanding::Beginning;
        drop(state);
        let created = LogFile::create(&self.path, bytes);
        let mut state = write(&self.state);
        if created.is_ok() && state.standing == LogStanding::Beginning {
            state.standing = LogStanding::Recording(id);
        } else {
            state.standing = LogStanding::Lost;
        }
        drop(state);
        self.change_file(file, created, (pushed, position))
    }

    /// Goes on with a file that was written anew, with all records up to a number, and a
    /// position. Where that has failed, there is none.
    pub(super) fn change_file(
        &self,
        file: &mut Option<LogFile>,
        created: io::Result<LogFile>,
        (pushed, position): (u64, (u64, u64)),
    ) -> io::Result<()> {
        match created {
            Ok(new) => {
                write(&self.state).len = new.len();
                *file = Some(new);
                self.is_reported.store(false, Relaxed);
                self.have_synced(position);
                self.have_recorded(pushed);
                Ok(())
            }
            Err(error) => {
                self.report(&error);
                self.discard_file(file)?;
                Err(error)
            }
        }
    }

    /// Logs why there is no file from now on.
    pub(super) fn report(&self, why: &dyn Display) {
        if self.is_reported.swap(true, Relaxed) {
            return;
        }
        tracing::error!(
            %why,
            "purges cannot be recorded on disk: until they can, nothing that is stored there outlives this process"
        );
    }

    /// Removes the file, so that no later run believes it.
    pub(super) fn discard_file(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let mut state = write(&self.state);
        state.fall_behind();
        state.len = 0;
        let pushed = state.pushed;
        drop(state);
        let emptied = file.take().map(LogFile::empty);
        let removed = match std::fs::remove_file(&self.path) {
            // Or the machine's end might bring it back; an earlier attempt may have failed
            // there.
            Ok(()) if !matches!(emptied, Some(Ok(()))) => sync_parent(&self.path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match matches!(emptied, Some(Ok(()))) {
                    true => Ok(()),
                    false => sync_parent(&self.path),
                }
            }
            removed => removed,
        };
        match removed {
            Err(error) if !matches!(emptied, Some(Ok(()))) => {
                if !self.is_stuck.swap(true, Relaxed) {
                    tracing::error!(
                        %error,
                        path = %self.path.display(),
                        "the purge log cannot be removed: remove it before ordgate is started again, or what was purged may be served"
                    );
                }
                Err(error)
            }
            Ok(()) | Err(_) => {
                self.is_stuck.store(false, Relaxed);
                self.have_recorded(pushed);
                Ok(())
            }
        }
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().map(File::open) {
        // With all that was in it.
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Some(parent) => parent?.sync_all(),
        None => Ok(()),
    }
}
