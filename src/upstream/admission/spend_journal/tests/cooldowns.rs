//! What providers have asked for, across restarts of the machine.

use super::*;
use crate::upstream::admission::restrictions::{HostCooldown, HostName};

#[test]
fn cooldowns_begin_anew_after_the_machine_was_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    let own = first.budget("one");
    let host = HostName::new("an-upstream", "a-host");
    let until = clock.now() + millis(40_000);
    let cooldown = HostCooldown {
        host,
        until,
        quota_spent_until: None,
    };
    own.set_cooldown(cooldown, clock.now());
    first.journal.write();
    drop(own);
    first.kill();
    clock.advance(millis(10_000));
    let second = Process::start(directory.path(), &clock);
    assert_eq!(second.budget("one").cooldown_at(host), Some(cooldown));
    second.kill();
    let file = directory.path().join(file::NAME);
    flip_boot(&file);
    let mut bytes = fs::read(&file).unwrap();
    let page = spending::changed(&bytes[PAGE..2 * PAGE], |page| page[24] ^= 1);
    bytes[PAGE..2 * PAGE].copy_from_slice(&page);
    fs::write(&file, bytes).unwrap();
    // The one that ends before it has written a page forgets nothing.
    Process::start(directory.path(), &clock).kill();
    let third = Process::start(directory.path(), &clock);
    let until = clock.now() + millis(40_000);
    let found = third.budget("one").cooldown_at(host);
    assert_eq!(found, Some(HostCooldown { until, ..cooldown }));
    assert_eq!(third.left("one"), Some(0), "what was spent is not known");
}
