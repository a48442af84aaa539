//! Flips bits and cuts files of a store that was killed, and opens it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Task;
use crate::subjects::Failure;
use crate::watch;

/// How long a damaged store may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn damage(task: &Task) -> Result<(), Failure> {
    let base = task.directory.join("base");
    let trial = task.directory.join("trial");
    let _ = fs::remove_dir_all(&task.directory);
    fs::create_dir_all(&base)?;
    let at = |directory: &std::path::Path| Task {
        subject: task.subject.clone(),
        directory: directory.to_owned(),
        entries: task.entries,
        max_bytes: task.max_bytes,
        count: 0,
    };
    let status = at(&base).child("fill", 0).stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("the fill ended with {status}").into());
    }
    let mut random = fastrand::Rng::with_seed(5);
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..task.count {
        let _ = fs::remove_dir_all(&trial);
        watch::copy(&base, &trial);
        let kind = match number % 4 {
            0 => "cut",
            1 | 2 => "flip",
            _ => "flips",
        };
        hurt(&trial, kind, &mut random)?;
        let mut child = at(&trial).child("check", 0);
        let child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        *outcomes.entry(outcome(child)?).or_default() += 1;
    }
    println!("== {}: {} damaged stores ==", task.subject, task.count);
    for (outcome, count) in outcomes {
        println!("{count:5} {outcome}");
    }
    Ok(())
}

/// Cuts a file, or flips a bit or 64 of them, at random places.
fn hurt(
    directory: &std::path::Path,
    kind: &str,
    random: &mut fastrand::Rng,
) -> Result<(), Failure> {
    let files = watch::files(directory);
    let files: Vec<_> = files
        .into_iter()
        .filter(|path| fs::metadata(path).is_ok_and(|file| file.len() > 0))
        .collect();
    for _ in 0..if kind == "flips" { 64 } else { 1 } {
        let path = &files[random.usize(..files.len())];
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let length = file.metadata()?.len();
        if kind == "cut" {
            file.set_len(random.u64(..length))?;
            continue;
        }
        // Half of them near the beginning, where headers are.
        let place = match random.bool() {
            true => random.u64(..length),
            false => random.u64(..length.min(16_384)),
        };
        let mut byte = [0];
        file.read_exact_at(&mut byte, place)?;
        byte[0] ^= 1 << random.u8(..8);
        file.write_all_at(&byte, place)?;
    }
    Ok(())
}

fn outcome(mut child: Child) -> Result<String, Failure> {
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok("hangs".to_owned());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => {
            let numbers: Vec<u64> = text
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            match numbers[..] {
                [_, failed, wrong, refused, back] => match (wrong + back, failed + refused) {
                    (0, 0) => "opens, and the rest is served".to_owned(),
                    (0, _) => "opens, with errors when used".to_owned(),
                    _ => "SERVES WRONG VALUES".to_owned(),
                },
                _ => format!("says {text}"),
            }
        }
        (Some(101), _) => "panics".to_owned(),
        (Some(3), _) => "does not open".to_owned(),
        (_, Some(signal)) => format!("is killed by signal {signal}"),
        (code, _) => format!("ends with {code:?}"),
    })
}
