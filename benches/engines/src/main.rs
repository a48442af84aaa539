//! Compares storage engines for ordgate's state on disk (benches/README.md).
//!
//!     engines run SUBJECT DIRECTORY ENTRIES MAX_BYTES KILLS
//!     engines damage SUBJECT DIRECTORY ENTRIES MAX_BYTES TRIALS
//!
//! Each step runs in a process of its own, which the program starts from itself, so
//! that it can be killed and its memory is its own.

mod child;
mod damage;
mod run;
mod subjects;
mod watch;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

/// What each command is given.
pub struct Task {
    pub subject: String,
    pub directory: PathBuf,
    pub entries: u64,
    pub max_bytes: u64,
    /// Kills or trials; for a child, the number it begins with.
    pub count: u64,
}

impl Task {
    /// The process that runs a step of this task.
    pub fn child(&self, step: &str, count: u64) -> std::process::Command {
        let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
        command
            .arg(step)
            .arg(&self.subject)
            .arg(&self.directory)
            .args([self.entries, self.max_bytes, count].map(|number| number.to_string()));
        command
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [command, subject, directory, numbers @ ..] = &arguments[..] else {
        println!("engines run|damage SUBJECT DIRECTORY ENTRIES MAX_BYTES COUNT");
        println!("subjects: {}", subjects::NAMES.join(" "));
        return ExitCode::FAILURE;
    };
    let number = |at: usize| {
        numbers
            .get(at)
            .and_then(|text: &String| text.parse().ok())
            .unwrap_or(0)
    };
    let task = Task {
        subject: subject.clone(),
        directory: directory.into(),
        entries: number(0),
        max_bytes: number(1),
        count: number(2),
    };
    let outcome = match &**command {
        "run" => run::run(&task),
        "damage" => damage::damage(&task),
        step => child::step(step, &task),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::from(3)
        }
    }
}
