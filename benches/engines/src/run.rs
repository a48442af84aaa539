//! Fills a store, kills and opens it again, and reads from it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::Task;
use crate::subjects::Failure;
use crate::watch;
use crate::work::Bodies;

/// What a writing child has said, and the most that it took.
#[derive(Default)]
struct Observed {
    synced: u64,
    removed: VecDeque<u64>,
    error: Option<String>,
    bytes: u64,
    allocated: u64,
    memory: u64,
    anonymous: u64,
}

pub fn run(task: &Task) -> Result<(), Failure> {
    let _ = fs::remove_dir_all(&task.directory);
    fs::create_dir_all(&task.directory)?;
    println!("== {} ==", task.subject);
    Bodies::new().describe();

    let before = Instant::now();
    let mut child = task.child("fill", 0).stdout(Stdio::piped()).spawn()?;
    let filled = observe(task, &mut child, None)?;
    let seconds = before.elapsed().as_secs_f64();
    println!(
        "fill: {} entries in {seconds:.1} s, {:.0} a second{}",
        filled.synced,
        filled.synced as f64 / seconds,
        filled
            .error
            .as_ref()
            .map(|error| format!(", then {error}"))
            .unwrap_or_default(),
    );
    report("fill", task, &filled);

    let status = task.child("read", filled.synced).status()?;
    if !status.success() {
        println!("read: {status}");
    }

    kill_and_open(task, filled.synced)?;
    let (bytes, allocated) = watch::bytes(&task.directory);
    println!(
        "on disk then: {} MB, {} MB allocated",
        bytes >> 20,
        allocated >> 20
    );
    Ok(())
}

/// Kills the process that writes at random moments, and opens the store each time.
fn kill_and_open(task: &Task, first: u64) -> Result<(), Failure> {
    let mut next = first;
    let mut random = fastrand::Rng::with_seed(11);
    let (mut opens, mut memory, mut anonymous) = (Vec::new(), 0, 0);
    let (mut wrong, mut back, mut lost, mut failures) = (0, 0, 0, 0);
    for _ in 0..task.count {
        let mut child = task.child("churn", next).stdout(Stdio::piped()).spawn()?;
        let killed = Duration::from_millis(random.u64(300..2500));
        let churned = observe(task, &mut child, Some(killed))?;
        failures += u64::from(churned.error.is_some());
        let synced = churned.synced.max(next);
        let mut child = task.child("open", synced);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("a pipe");
        // As many as surely are not evicted yet.
        let some = task.max_bytes / 20_000;
        writeln!(input, "{}\n{synced}", next.max(synced.saturating_sub(some)))?;
        for n in &churned.removed {
            writeln!(input, "{n}")?;
        }
        drop(input);
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [micros, peak, rss, missing, mistaken, returned] = numbers[..] else {
            failures += 1;
            println!("open failed ({}): {}", output.status, text.trim());
            continue;
        };
        opens.push(micros);
        (memory, anonymous) = (memory.max(peak), anonymous.max(rss));
        lost += missing;
        wrong += mistaken;
        back += returned;
        next = synced + 1_000_000;
    }
    opens.sort_unstable();
    if let (Some(median), Some(most)) = (opens.get(opens.len() / 2), opens.last()) {
        println!(
            "{} kills: opened in {:.1} ms (median), {:.1} ms (most), {memory} kB at most then, {anonymous} kB of it anonymous; {lost} synced ones lost, {wrong} wrong, {back} removed ones back, {failures} failures",
            task.count,
            *median as f64 / 1000.0,
            *most as f64 / 1000.0,
        );
    }
    Ok(())
}

/// Reads what a child says and watches what it takes, until it ends or is killed.
fn observe(task: &Task, child: &mut Child, kill: Option<Duration>) -> Result<Observed, Failure> {
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let observed = Arc::new(Mutex::new(Observed::default()));
    let reader = {
        let observed = observed.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let mut observed = observed.lock().expect("no panic");
                match line.split_once(' ') {
                    Some(("synced", n)) => observed.synced = n.parse().unwrap_or(0),
                    Some(("removed", n)) => {
                        observed.removed.extend(n.parse::<u64>());
                        let surplus = observed.removed.len().saturating_sub(500);
                        observed.removed.drain(..surplus);
                    }
                    _ => observed.error = Some(line),
                }
            }
        })
    };
    let started = Instant::now();
    loop {
        let (bytes, allocated) = watch::bytes(&task.directory);
        let memory = watch::memory(child.id(), "VmHWM:");
        let anonymous = watch::memory(child.id(), "RssAnon:");
        {
            let mut observed = observed.lock().expect("no panic");
            observed.bytes = observed.bytes.max(bytes);
            observed.allocated = observed.allocated.max(allocated);
            observed.memory = observed.memory.max(memory);
            observed.anonymous = observed.anonymous.max(anonymous);
        }
        if kill.is_some_and(|after| started.elapsed() > after) {
            child.kill()?;
        }
        if let Some(status) = child.try_wait()? {
            if kill.is_none() && !status.success() {
                observed
                    .lock()
                    .expect("no panic")
                    .error
                    .get_or_insert(status.to_string());
            }
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    reader.join().expect("no panic");
    Ok(Arc::into_inner(observed)
        .expect("the thread has ended")
        .into_inner()
        .expect("no panic"))
}

fn report(step: &str, task: &Task, observed: &Observed) {
    let percent = |bytes: u64| bytes * 100 / task.max_bytes;
    println!(
        "{step}: at most {} MB ({} % of the bound), {} MB allocated ({} %); memory at most {} kB, {} kB anonymous",
        observed.bytes >> 20,
        percent(observed.bytes),
        observed.allocated >> 20,
        percent(observed.allocated),
        observed.memory,
        observed.anonymous,
    );
}
