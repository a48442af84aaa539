//! Writing: batches, removals, the change to a new segment, and eviction.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::record;
use super::recover::{EIO, path, sync_directory};
use super::segment::{self, Segment};
use super::{Engine, EngineError, EntryKey, fingerprint};

/// What only writes need. Its lock serializes them.
pub(super) struct Writer {
    /// The sequence number of the next entry.
    pub(super) next_sequence: u64,
    /// The number of the next segment.
    pub(super) next_segment: u64,
    /// Records that no longer count, and are not yet marked so on disk.
    pub(super) to_erase: VecDeque<Place>,
    /// Files that were written since they were last synced.
    pub(super) unsynced: Vec<(u64, Arc<File>)>,
    /// Whether a write failed and may have left bytes behind the newest segment's end.
    pub(super) has_remains: bool,
}

/// A record of a segment.
pub(super) struct Place {
    segment: u64,
    file: Arc<File>,
    offset: u32,
}

/// Records that are to be written at once.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// The fingerprint of each, and where in the bytes it begins.
    entries: Vec<(u64, usize)>,
    first: u64,
}

impl Writer {
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    pub(super) fn put_batch(
        &mut self,
        engine: &Engine,
        batch: &[(EntryKey, Vec<u8>)],
    ) -> Result<(), EngineError> {
        let most = engine.max_value_bytes();
        if let Some((_, value)) = batch.iter().find(|(_, value)| value.len() > most) {
            let bytes = value.len();
            return Err(EngineError::ValueTooLarge { bytes, most });
        }
        self.erase(engine)?;
        let mut pending = Pending::default();
        for (key, value) in batch {
            if !self.has_room(engine, &pending, value.len()) {
                self.append(engine, std::mem::take(&mut pending))?;
                // The segment may still have room for this one alone.
                if !self.has_room(engine, &pending, value.len()) {
                    self.change_segment(engine)?;
                }
            }
            let start = pending.bytes.len();
            if pending.entries.is_empty() {
                pending.first = self.next_sequence;
            }
            record::append(&mut pending.bytes, key, self.next_sequence, value);
            pending.entries.push((fingerprint(key), start));
            self.next_sequence = self.next_sequence.saturating_add(1);
        }
        self.append(engine, pending)
    }

    pub(super) fn remove_batch(
        &mut self,
        engine: &Engine,
        keys: &[EntryKey],
    ) -> Result<(), EngineError> {
        for key in keys {
            let fingerprint = fingerprint(key);
            for segment in engine.write().iter_mut() {
                let removed = segment.index.remove(fingerprint);
                self.to_erase
                    .extend(removed.map(|offset| Place::new(segment, offset)));
            }
        }
        self.sync(engine)
    }

    pub(super) fn sync(&mut self, engine: &Engine) -> Result<(), EngineError> {
        self.erase(engine)?;
        self.sync_below(engine, u64::MAX)
    }

    /// Waits until what was written to segments with lower numbers survives a crash.
    fn sync_below(&mut self, engine: &Engine, number: u64) -> Result<(), EngineError> {
        let is_below = |(segment, _): &&(u64, Arc<File>)| *segment < number;
        while let Some((segment, file)) = self.unsynced.iter().find(is_below).cloned() {
            match sync_data(segment, &file) {
                Ok(()) => self.unsynced.retain(|(noted, _)| *noted != segment),
                // What was written may be lost, though a later attempt may succeed.
                Err(error) => self.give_up(engine, segment, ("sync", error))?,
            }
        }
        Ok(())
    }

    /// Marks what no longer counts as gone on disk, the oldest first: as long as an
    /// older record counts, so does the one that replaced it.
    fn erase(&mut self, engine: &Engine) -> Result<(), EngineError> {
        while let Some(place) = self.to_erase.front() {
            let (segment, file) = (place.segment, place.file.clone());
            match erase(place) {
                Ok(()) => {
                    self.to_erase.pop_front();
                    self.note_unsynced(segment, file);
                }
                Err(error) => self.give_up(engine, segment, ("write", error))?,
            }
        }
        Ok(())
    }

    /// Deletes a segment that has a bad sector: one must not keep the others from being
    /// written. After any other error it is tried again. Records in older segments that
    /// this one's have replaced are gone for good before it is.
    fn give_up(
        &mut self,
        engine: &Engine,
        number: u64,
        (action, error): (&'static str, std::io::Error),
    ) -> Result<(), EngineError> {
        if error.raw_os_error() != Some(EIO) {
            return Err(engine.error(action, number, error));
        }
        let places = std::mem::take(&mut self.to_erase).into_iter();
        let (older, others): (Vec<_>, Vec<_>) = places.partition(|place| place.segment < number);
        self.to_erase = older.into();
        let erased = self.erase(engine);
        self.to_erase.extend(others);
        erased?;
        self.sync_below(engine, number)?;
        engine.drop_segment(number)?;
        self.to_erase.retain(|place| place.segment != number);
        self.unsynced.retain(|(noted, _)| *noted != number);
        tracing::error!(
            %error,
            segment = number,
            "cannot {action} a file of stored responses: it was deleted, with all that was stored in it"
        );
        Ok(())
    }

    fn note_unsynced(&mut self, segment: u64, file: Arc<File>) {
        if self.unsynced.iter().all(|(noted, _)| *noted != segment) {
            self.unsynced.push((segment, file));
        }
    }

    /// Whether the newest segment has room for another record after what is pending.
    fn has_room(&self, engine: &Engine, pending: &Pending, bytes: usize) -> bool {
        let (size, entries) = (pending.bytes.len(), pending.entries.len());
        let most = engine.limits.segment_bytes;
        engine
            .read()
            .back()
            .is_some_and(|newest| newest.is_open && newest.has_room(size, entries, bytes, most))
    }

    /// Appends records to the newest segment and has the index point to them; what
    /// they replace is marked as gone afterwards.
    fn append(&mut self, engine: &Engine, pending: Pending) -> Result<(), EngineError> {
        if pending.entries.is_empty() {
            return Ok(());
        }
        self.remove_remains(engine)?;
        let newest = engine.read().back().map(|newest| {
            let place = Place::new(newest, 0);
            (place, newest.end)
        });
        let Some((Place { segment, file, .. }, end)) = newest else {
            return Ok(());
        };
        if let Err(error) = file.write_all_at(&pending.bytes, end) {
            self.has_remains = true;
            // Done again before the next write, if it fails now.
            let _retried = self.remove_remains(engine);
            if error.raw_os_error() == Some(EIO) {
                self.give_up(engine, segment, ("write", rustix::io::Errno::IO.into()))?;
            }
            return Err(engine.error("write", segment, error));
        }
        self.note_unsynced(segment, file);
        let mut segments = engine.write();
        for (fingerprint, start) in pending.entries {
            let offset = (end + start as u64) as u32;
            let last = segments.len() - 1;
            for (at, segment) in segments.iter_mut().enumerate() {
                let replaced = match at == last {
                    true => segment.index.insert(fingerprint, offset),
                    false => segment.index.remove(fingerprint),
                };
                self.to_erase
                    .extend(replaced.map(|offset| Place::new(segment, offset)));
            }
        }
        if let Some(newest) = segments.back_mut() {
            newest.end = end + pending.bytes.len() as u64;
            newest.length = newest.end;
            newest.next = self.next_sequence;
        }
        drop(segments);
        self.erase(engine)
    }

    /// Cuts off what a failed write may have left.
    fn remove_remains(&mut self, engine: &Engine) -> Result<(), EngineError> {
        if self.has_remains
            && let Some(newest) = engine.read().back().filter(|newest| newest.is_open)
        {
            let cut = newest.file.set_len(newest.end);
            cut.map_err(|error| engine.error("shorten", newest.number, error))?;
        }
        self.has_remains = false;
        Ok(())
    }

    /// Ends the newest segment and begins another, for which room is made.
    fn change_segment(&mut self, engine: &Engine) -> Result<(), EngineError> {
        self.remove_remains(engine)?;
        self.seal(engine)?;
        engine.evict(engine.limits.segment_bytes, engine.limits.segments - 1)?;
        let number = self.next_segment;
        // Not used again, whatever comes of it.
        self.next_segment += 1;
        let new = path(&engine.directory, number, true);
        let segment = Segment::create(&new, number, self.next_sequence).map_err(|error| {
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                // If this fails too, the next start deletes it.
                let _deleted = fs::remove_file(&new);
            }
            EngineError::new("create", &new, error)
        })?;
        self.note_unsynced(number, segment.file.clone());
        engine.write().push_back(segment);
        sync_directory(&engine.directory)
    }

    /// Appends the index to the newest segment, and gives it its final name.
    fn seal(&mut self, engine: &Engine) -> Result<(), EngineError> {
        let Some((number, file, end, stored)) = engine.read().back().and_then(|newest| {
            let parts = || {
                (
                    newest.number,
                    newest.file.clone(),
                    newest.end,
                    newest.stored_index(),
                )
            };
            newest.is_open.then(parts)
        }) else {
            return Ok(());
        };
        // There is room unless the bound was lowered since the last run.
        engine.evict(stored.len() as u64 + segment::PREAMBLE as u64, usize::MAX)?;
        if engine
            .read()
            .back()
            .is_none_or(|newest| newest.number != number)
        {
            return Ok(());
        }
        self.has_remains = true;
        if let Err(error) = file
            .write_all_at(&stored, end)
            .and_then(|()| sync_data(number, &file))
        {
            return self.give_up(engine, number, ("write", error));
        }
        let (open, full) = (
            path(&engine.directory, number, true),
            path(&engine.directory, number, false),
        );
        if let Err(error) = fs::rename(&open, full) {
            if error.kind() == std::io::ErrorKind::NotFound {
                // Somebody has deleted it. The next write begins another.
                engine.write().pop_back();
                self.has_remains = false;
            }
            return Err(EngineError::new("rename", &open, error));
        }
        self.has_remains = false;
        if let Some(newest) = engine.write().back_mut() {
            newest.seal(end + stored.len() as u64);
        }
        self.unsynced.retain(|(noted, _)| *noted != number);
        Ok(())
    }
}

impl Place {
    pub(super) fn new(segment: &Segment, offset: u32) -> Self {
        Self {
            segment: segment.number,
            file: segment.file.clone(),
            offset,
        }
    }
}

impl Engine {
    fn error(&self, action: &'static str, segment: u64, error: std::io::Error) -> EngineError {
        EngineError::new(action, &path(&self.directory, segment, false), error)
    }

    /// Deletes a segment, whose values count as unreadable from then on.
    fn drop_segment(&self, number: u64) -> Result<(), EngineError> {
        for is_open in [true, false] {
            delete(&self.directory, (number, is_open))?;
        }
        sync_directory(&self.directory)?;
        let mut segments = self.write();
        if let Some(at) = segments.iter().position(|one| one.number == number) {
            let dropped = segments.remove(at);
            let dropped = dropped.map_or(0, |segment| segment.index.live() as u64);
            self.unreadable.fetch_add(dropped, Relaxed);
        }
        Ok(())
    }

    /// Deletes the oldest segments until there is room for this many bytes more, and
    /// until there are no more segments than that. A segment whose file cannot be
    /// deleted stays.
    pub(super) fn evict(&self, room: u64, most: usize) -> Result<(), EngineError> {
        loop {
            let oldest = {
                let segments = self.read();
                let bytes: u64 = segments.iter().map(Segment::disk_bytes).sum();
                let fits = bytes.saturating_add(segment::blocks(room)) <= self.limits.max_bytes;
                match segments.front() {
                    Some(oldest) if !fits || segments.len() > most => {
                        (oldest.number, oldest.is_open)
                    }
                    _ => return Ok(()),
                }
            };
            delete(&self.directory, oldest)?;
            let evicted = self.write().pop_front();
            let evicted = evicted.map_or(0, |segment| segment.index.live() as u64);
            self.evicted.fetch_add(evicted, Relaxed);
        }
    }
}

/// Deletes a segment's file. That it is gone already is no error.
fn delete(directory: &Path, (number, is_open): (u64, bool)) -> Result<(), EngineError> {
    let file = path(directory, number, is_open);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(EngineError::new("delete", &file, error))
        }
        _ => Ok(()),
    }
}

/// Marks a record as gone.
fn erase(place: &Place) -> std::io::Result<()> {
    #[cfg(test)]
    super::tests::bad_sector::check_write(place.segment)?;
    Segment::erase(&place.file, place.offset)
}

fn sync_data(segment: u64, file: &File) -> std::io::Result<()> {
    #[cfg(test)]
    super::tests::bad_sector::check_sync(segment)?;
    let _only_in_tests = segment;
    file.sync_data()
}
