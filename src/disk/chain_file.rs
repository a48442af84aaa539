//! What is known of an indexer's chain, in a file: the hashes of its blocks, and the runs
//! of the process whose answers name them.
//!
//! The next run checks with one request whether the highest of them still stands
//! (`Ledger::seed`). Only then are answers that name them fresh. A file that is torn or
//! damaged is as good as none: then nothing is known to stand. The file may be older than a
//! reorg: it says which purges it knew of, and the next run cuts it off at the lowest
//! height of those that came later.

use std::io;
use std::path::{Path, PathBuf};

use super::files::replace;
use crate::chain::{KnownBlocks, KnownRun, MOST_RUNS};
use crate::pages::Block;
use crate::portable::bytes::{Reader, put_record, take_record};
use crate::portable::digest::MeaningDigest;

const HEAD: &[u8; 16] = b"ordgate-blocks-2";

/// The most blocks of a file: the highest.
const MOST: u32 = 16_384;

/// The path of a tip's file.
pub(super) fn path(directory: &Path, tip: MeaningDigest) -> PathBuf {
    directory.join(format!("blocks-{}", tip.hex()))
}

/// The most bytes of a file.
pub(super) const MOST_BYTES: u64 = MOST as u64 * 37 + MOST_RUNS as u64 * 12 + 128;

/// The files that are kept of tips which are not configured: they may be again.
pub(super) const MOST_FORMER: usize = 4;

/// Removes the files of tips that are not configured, but for the newest.
pub(super) fn tidy(directory: &Path, tips: &[MeaningDigest]) -> io::Result<()> {
    let present: Vec<_> = tips.iter().map(|tip| path(directory, *tip)).collect();
    let mut former = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"blocks-");
        if is_ours && !present.contains(&entry.path()) {
            former.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    former.sort_unstable();
    former.truncate(former.len().saturating_sub(MOST_FORMER));
    former
        .iter()
        .try_for_each(|(_, path)| std::fs::remove_file(path))
}

/// Writes the blocks of a tip, and the number of the last purge before they were
/// collected.
pub(super) fn write(
    directory: &Path,
    tip: MeaningDigest,
    (known, purge): (&KnownBlocks, u64),
) -> io::Result<()> {
    let mut content = HEAD.to_vec();
    content.extend_from_slice(&tip.0);
    content.extend_from_slice(&purge.to_le_bytes());
    let runs = &known.runs[known.runs.len().saturating_sub(MOST_RUNS)..];
    content.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    for run in runs {
        content.extend_from_slice(&run.state.to_le_bytes());
        content.extend_from_slice(&run.up_to.to_le_bytes());
    }
    let blocks = &known.blocks;
    let blocks = &blocks[blocks.len().saturating_sub(MOST as usize)..];
    let count = u32::try_from(blocks.len()).unwrap_or(MOST);
    content.extend_from_slice(&count.to_le_bytes());
    for (block, has_items) in blocks {
        content.extend_from_slice(&block.height.to_le_bytes());
        content.extend_from_slice(&block.hash);
        content.push(u8::from(*has_items));
    }
    let mut bytes = Vec::new();
    put_record(&mut bytes, &content);
    replace(&path(directory, tip), &bytes, false).map(drop)
}

/// What was written; `Err` if the file cannot be read, `Ok(None)` without one.
pub(super) fn read(directory: &Path, tip: MeaningDigest) -> io::Result<Option<(KnownBlocks, u64)>> {
    match std::fs::read(path(directory, tip)) {
        Ok(bytes) => match parse(&bytes, tip) {
            Some(blocks) => Ok(Some(blocks)),
            None => Err(io::Error::other("it is torn or damaged")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(bytes: &[u8], tip: MeaningDigest) -> Option<(KnownBlocks, u64)> {
    let mut whole = Reader(bytes);
    let mut from = Reader(take_record(&mut whole)?);
    if !whole.is_at_end() || from.array()? != *HEAD || from.array()? != tip.0 {
        return None;
    }
    let purge = from.u64()?;
    let count = from.u32().filter(|count| *count as usize <= MOST_RUNS)?;
    let run = |_| {
        let (state, up_to) = (from.u64()?, from.u32()?);
        Some(KnownRun { state, up_to })
    };
    let runs: Vec<_> = (0..count).map(run).collect::<Option<_>>()?;
    let count = from.u32().filter(|count| *count <= MOST)?;
    let block = |_| {
        let (height, hash) = (from.u32()?, from.array()?);
        Some((Block { height, hash }, from.bool()?))
    };
    let blocks: Vec<_> = (0..count).map(block).collect::<Option<_>>()?;
    let known = KnownBlocks { blocks, runs };
    from.is_at_end().then_some((known, purge))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: KnownRun = KnownRun {
        state: 3,
        up_to: 840_000,
    };

    #[test]
    fn the_files_of_former_tips_are_few() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = (0..MOST).map(|height| {
            let mut hash = [1; 32];
            hash[..4].copy_from_slice(&height.to_le_bytes());
            (Block { height, hash }, true)
        });
        let known = KnownBlocks {
            blocks: blocks.collect(),
            runs: vec![RUN; MOST_RUNS],
        };
        let tip = |number: u8| MeaningDigest([number; 32]);
        for number in 0..12 {
            write(directory.path(), tip(number), (&known, 0)).unwrap();
            let file = std::fs::File::open(path(directory.path(), tip(number))).unwrap();
            assert!(file.metadata().unwrap().len() <= MOST_BYTES);
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(number.into());
            file.set_modified(at).unwrap();
        }
        std::fs::write(directory.path().join("purges"), "").unwrap();
        tidy(directory.path(), &[tip(0), tip(9)]).unwrap();
        let is_there = |number: &u8| path(directory.path(), tip(*number)).exists();
        let left: Vec<_> = (0..12).filter(is_there).collect();
        assert_eq!(left, [0, 7, 8, 9, 10, 11]);
        assert!(directory.path().join("purges").exists());
    }

    #[test]
    fn blocks_are_read_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let tip = MeaningDigest([1; 32]);
        let block = |height: u8| Block {
            height: height.into(),
            hash: [height; 32],
        };
        let mut known = KnownBlocks {
            blocks: vec![(block(7), true), (block(9), false)],
            runs: vec![RUN],
        };
        assert_eq!(read(directory.path(), tip).unwrap(), None);
        write(directory.path(), tip, (&known, 5)).unwrap();
        assert_eq!(
            read(directory.path(), tip).unwrap(),
            Some((known.clone(), 5))
        );
        let whole = std::fs::read(path(directory.path(), tip)).unwrap();
        assert_eq!(
            parse(&whole, MeaningDigest([2; 32])),
            None,
            "of another tip"
        );
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len], tip), None);
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&flipped, tip), None);
        }
        std::fs::write(path(directory.path(), tip), &whole[1..]).unwrap();
        assert!(read(directory.path(), tip).is_err());
        known.blocks.pop();
        write(directory.path(), tip, (&known, 5)).unwrap();
        assert_eq!(read(directory.path(), tip).unwrap(), Some((known, 5)));
    }
}
