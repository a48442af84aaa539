//! Writes log lines on threads of their own, so that a standard error or standard output
//! that blocks, such as a pipe that nobody reads, delays no request.
//!
//! Lines that do not fit in the queue are dropped and counted. The last quarter of the
//! queue is for lines other than the access log's, so that many requests do not crowd out
//! a warning. The lines of one client take at most a sixteenth of the queue. Once half of
//! the queue is full, the next quarter is for clients that have few lines in it, 2 KiB
//! each: eight clients can fill that half, and 128 more the quarter. With more clients than
//! that in one interval in which nothing can be written, lines of others are dropped too.
//!
//! Invariants: [`LogWriter::push`] never waits for a write. A queue has at most
//! [`MAX_BYTES`], beside what its thread is writing, which is at most as much; so each of
//! the two takes at most 4.5 MiB, with the table of clients, and 150 KiB once all is
//! written. Lines are written whole and in order.

mod hidden;
mod interval;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::sync::lock;
pub(crate) use hidden::{escape_json, is_hidden};
pub use interval::LogInterval;

/// The most bytes of lines that wait.
pub const MAX_BYTES: usize = 1 << 20;
/// The most bytes of them that may be access-log lines.
const MAX_ACCESS_BYTES: usize = MAX_BYTES / 4 * 3;
/// Up to so many bytes in the queue, a client may have [`MAX_CLIENT_BYTES`]; above,
/// [`MAX_RESERVED_BYTES`].
const UNRESERVED_BYTES: usize = MAX_BYTES / 2;
/// The most bytes of one client's access-log lines.
const MAX_CLIENT_BYTES: usize = MAX_BYTES / 16;
/// The same where the queue is half full: some five usual lines.
const MAX_RESERVED_BYTES: usize = 2 << 10;
/// The memory that a queue keeps when it is empty.
const KEPT_BYTES: usize = 64 << 10;
/// The clients for which an empty queue keeps memory, at most 16 KiB.
const KEPT_CLIENTS: usize = 256;
/// How long to wait if a non-blocking file takes no more.
const PAUSE: Duration = Duration::from_millis(10);

/// Where lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error: the log.
    StandardError,
    /// Standard output: the access log in Apache's format.
    StandardOutput,
}

impl Destination {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::StandardError, Self::StandardOutput];

    /// Its name in metrics and `/status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StandardError => "stderr",
            Self::StandardOutput => "stdout",
        }
    }

    /// Its writer, if it has been started.
    fn started(self) -> Option<&'static LogWriter> {
        WRITERS[self as usize].get()
    }

    /// The lines that were dropped since the start.
    pub fn dropped(self) -> u64 {
        self.started().map_or(0, LogWriter::dropped)
    }
}

/// The process has one of each.
static WRITERS: [OnceLock<LogWriter>; 2] = [OnceLock::new(), OnceLock::new()];

/// Waits until all lines are written, but no longer than this for each destination. To be
/// called before the process ends.
pub fn flush(within: Duration) {
    for writer in Destination::ALL.iter().filter_map(|to| to.started()) {
        writer.flush(within);
    }
}

/// What kind of line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A line for a request.
    Access {
        /// A number of its client.
        client: u64,
    },
    /// Any other.
    Event,
}

thread_local! {
    static CLIENT: Cell<u64> = const { Cell::new(0) };
}

/// Writes events for a request of a client, which has this number: the layers between do
/// not pass it on.
pub(crate) fn for_client(client: u64, write: impl FnOnce()) {
    CLIENT.set(client);
    write();
    CLIENT.set(0);
}

/// The number of the client for whose request an event is being written.
pub(crate) fn present_client() -> u64 {
    CLIENT.get()
}

/// The queue of one destination.
#[derive(Clone, Debug)]
pub struct LogWriter(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Lines have come, or have been written.
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    lines: u64,
    /// The bytes of each client's lines.
    by_client: HashMap<u64, usize>,
    is_writing: bool,
}

impl Waiting {
    /// Whether there is room for a line. Counts it.
    fn admit(&mut self, length: usize, kind: LineKind) -> bool {
        let LineKind::Access { client } = kind else {
            return self.bytes.len() + length <= MAX_BYTES;
        };
        let all = self.bytes.len() + length;
        let own = self.by_client.get(&client).copied().unwrap_or(0) + length;
        let most = match all <= UNRESERVED_BYTES {
            true => MAX_CLIENT_BYTES,
            false => MAX_RESERVED_BYTES,
        };
        let fits = all <= MAX_ACCESS_BYTES && own <= most;
        if fits {
            self.by_client.insert(client, own);
        }
        fits
    }
}

impl LogWriter {
    /// The writer of a destination, which is started when it is first used. If its thread
    /// cannot be started, its lines are dropped.
    pub fn to(destination: Destination) -> &'static Self {
        WRITERS[destination as usize].get_or_init(|| {
            let file = match destination {
                Destination::StandardError => io::stderr().as_fd().try_clone_to_owned(),
                Destination::StandardOutput => io::stdout().as_fd().try_clone_to_owned(),
            };
            // Not through the standard library's handle: whoever else prints would wait for
            // its lock.
            match file {
                Ok(file) => Self::start(destination.name(), File::from(file)),
                Err(_closed) => Self::start(destination.name(), io::sink()),
            }
        })
    }

    fn start(name: &str, mut out: impl Write + Send + 'static) -> Self {
        let queue = Arc::<Queue>::default();
        let writer = queue.clone();
        let thread = std::thread::Builder::new().name(format!("log-{name}"));
        // Without a thread the queue fills, and what comes then is dropped.
        let _started = thread.spawn(move || writer.run(&mut out));
        Self(queue)
    }

    /// Queues a line, with its line feed. Drops it if the queue is full.
    pub fn push(&self, line: &[u8], kind: LineKind) {
        let mut waiting = lock(&self.0.waiting);
        if !waiting.admit(line.len(), kind) {
            drop(waiting);
            self.0.dropped.fetch_add(1, Relaxed);
            return;
        }
        let was_empty = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(line);
        waiting.lines += 1;
        let wakes = was_empty && !waiting.is_writing;
        drop(waiting);
        if wakes {
            self.0.changed.notify_all();
        }
    }

    /// The lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// Waits until all lines are written. Returns whether they are.
    fn flush(&self, within: Duration) -> bool {
        let waiting = lock(&self.0.waiting);
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.bytes.is_empty();
        let waited = self.0.changed.wait_timeout_while(waiting, within, is_busy);
        let (_waiting, result) = waited.unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }
}

impl Queue {
    /// Writes what comes, as long as the process lives.
    fn run(&self, out: &mut impl Write) {
        let mut taken = Vec::new();
        loop {
            let lines = self.take(&mut taken);
            if write_all(out, &taken).is_err() {
                self.dropped.fetch_add(lines, Relaxed);
            }
            taken.clear();
            taken.shrink_to(KEPT_BYTES);
        }
    }

    /// Waits for lines and takes them all. Returns how many there are.
    fn take(&self, taken: &mut Vec<u8>) -> u64 {
        let mut waiting = lock(&self.waiting);
        if waiting.is_writing {
            waiting.is_writing = false;
            self.changed.notify_all();
        }
        let is_empty = |waiting: &mut Waiting| waiting.bytes.is_empty();
        let waited = self.changed.wait_while(waiting, is_empty);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut waiting.bytes, taken);
        waiting.by_client.clear();
        waiting.by_client.shrink_to(KEPT_CLIENTS);
        waiting.is_writing = true;
        std::mem::take(&mut waiting.lines)
    }
}

/// Writes all bytes, also to a file that does not block.
fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Takes bytes only while it may.
    struct Gated {
        open: mpsc::Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
        begun: mpsc::Sender<()>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let Ok(()) = self.open.recv() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            lock(&self.written).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer whose thread is blocked, what lets it write once, and what it has written.
    fn blocked() -> (LogWriter, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (opener, open) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let gated = Gated {
            open,
            written: written.clone(),
            begun,
        };
        let writer = LogWriter::start("test", gated);
        writer.push(b"first\n", LineKind::Event);
        begins.recv().unwrap();
        (writer, opener, written)
    }

    /// Queues so many lines of a client. Returns how many were dropped.
    fn push_lines(writer: &LogWriter, client: u64, lines: u64, length: usize) -> u64 {
        let before = writer.dropped();
        for _ in 0..lines {
            writer.push(&vec![b'x'; length], LineKind::Access { client });
        }
        writer.dropped() - before
    }

    #[test]
    fn a_hundred_clients_leave_room_for_the_lines_of_another() {
        let (writer, _opener, _written) = blocked();
        for client in 1000..1100 {
            assert!(push_lines(&writer, client, 300, 300) > 0, "{client}");
        }
        assert_eq!(push_lines(&writer, 7, 6, 300), 0, "the honest client");
        assert!(push_lines(&writer, 7, 1, 300) > 0, "it has its part");
        // With very many there is no room left, but for what is not the access log's.
        for client in 2000..3000 {
            push_lines(&writer, client, 10, 300);
        }
        assert!(lock(&writer.0.waiting).bytes.len() <= MAX_ACCESS_BYTES);
        assert_eq!(push_lines(&writer, 8, 1, 300), 1);
        let dropped = writer.dropped();
        writer.push(b"warning\n", LineKind::Event);
        assert_eq!(writer.dropped(), dropped);
    }

    #[test]
    fn a_blocked_file_delays_nobody_and_what_does_not_fit_is_dropped_and_counted() {
        let (writer, opener, written) = blocked();
        let line = [b'x'; 1 << 10];
        let fits = (MAX_CLIENT_BYTES / line.len()) as u64;
        for client in [66, 7] {
            let dropped = push_lines(&writer, client, 2000, line.len());
            assert_eq!(dropped, 2000 - fits, "{client}");
        }
        let dropped = writer.dropped();
        writer.push(b"warning\n", LineKind::Event);
        assert_eq!(writer.dropped(), dropped, "there is room for it");
        for _ in 0..2000 {
            writer.push(&line, LineKind::Event);
        }
        assert!(lock(&writer.0.waiting).bytes.len() <= MAX_BYTES);
        let dropped = writer.dropped();
        assert!(!writer.flush(Duration::from_millis(1)), "it is blocked");
        opener.send(()).unwrap();
        opener.send(()).unwrap();
        assert!(writer.flush(Duration::from_secs(600)));
        let written = lock(&written).clone();
        assert!(written.starts_with(b"first\nx"));
        let warning = b"xwarning\nx";
        assert!(written.windows(warning.len()).any(|part| part == warning));
        assert_eq!(writer.dropped(), dropped);
        // A line that cannot be written is lost too.
        drop(opener);
        writer.push(b"last\n", LineKind::Event);
        assert!(writer.flush(Duration::from_secs(600)));
        assert_eq!(writer.dropped(), dropped + 1);
    }
}
