//! The send windows of a connection and of its streams (RFC 9113 §5.2), and the
//! deadlines by which a client must open them. Pure: `now` is an argument.
//!
//! A stream is blocked while its response has begun, has not ended, and its
//! window or the connection's is exhausted. The client must then take DATA by the
//! deadline that a stalled HTTP/1.1 connection has, whatever else it sends. The
//! time for which a window is open does not count: then it is ordgate, or the
//! upstream, that has nothing to send.

use crate::clock::Moment;
use crate::listener::watch::ConnectionTimeouts;

/// The initial window (RFC 9113 §6.9.2).
const INITIAL: i64 = 65_535;

/// How far a client is behind with what it must take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendProgress {
    /// By when it must take more, once it has been blocked.
    deadline: Option<Moment>,
    /// Since when it has been blocked.
    blocked: Option<Moment>,
    /// Since when it has not been blocked any more.
    open: Option<Moment>,
    /// Bytes that it has taken since the deadline was set.
    taken: u64,
}

impl SendProgress {
    /// It takes nothing more.
    pub(super) fn block(&mut self, times: &ConnectionTimeouts, now: Moment) {
        let taken = std::mem::take(&mut self.taken);
        if self.blocked.is_some() && taken == 0 {
            return;
        }
        let open = self.open.take().map(|since| now.since(since));
        let before = self.deadline.map(|deadline| {
            let deadline = deadline + open.unwrap_or_default();
            (deadline, taken)
        });
        self.deadline = Some(times.write_deadline(before, now));
        self.blocked = Some(now);
    }

    /// It takes more again.
    pub(super) fn open(&mut self, now: Moment) {
        if self.blocked.take().is_some() {
            self.open = Some(now);
        }
    }

    /// It has taken so many bytes.
    pub(super) fn take(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Since when it has been blocked, and by when it must take more.
    pub(super) fn blocked(&self) -> Option<(Moment, Moment)> {
        self.blocked.zip(self.deadline)
    }
}

/// A window and the progress of the client with it.
#[derive(Clone, Copy, Debug)]
struct Window {
    size: i64,
    progress: SendProgress,
}

impl Window {
    fn new(size: i64) -> Self {
        Self {
            size,
            progress: SendProgress::default(),
        }
    }

    /// Changes its size. `waits` is whether anything waits for it.
    fn change(&mut self, by: i64, waits: bool, times: &ConnectionTimeouts, now: Now<'_>) {
        self.size += by;
        match (self.size > 0, waits) {
            (true, _) if self.progress.blocked.is_some() => self.progress.open(now()),
            (false, true) => self.progress.block(times, now()),
            _ => {}
        }
    }
}

/// Reads the clock, where that is needed.
pub(super) type Now<'a> = &'a dyn Fn() -> Moment;

/// A request and its response in progress.
#[derive(Clone, Copy, Debug)]
struct Stream {
    id: u32,
    window: Window,
    /// Whether its response has begun.
    begun: bool,
}

/// The send windows of a connection.
#[derive(Debug)]
pub(super) struct SendWindows {
    times: ConnectionTimeouts,
    connection: Window,
    /// SETTINGS_INITIAL_WINDOW_SIZE of the client.
    initial: i64,
    /// The streams whose response has not ended, oldest first.
    streams: Vec<Stream>,
    /// How many of them have begun.
    begun: usize,
    /// The highest stream so far.
    last: u32,
    /// The highest stream that is served: that of the last GOAWAY.
    served: u32,
}

impl SendWindows {
    pub(super) fn new(times: ConnectionTimeouts) -> Self {
        Self {
            times,
            connection: Window::new(INITIAL),
            initial: INITIAL,
            streams: Vec::new(),
            begun: 0,
            last: 0,
            served: u32::MAX,
        }
    }

    /// How many streams there are whose response has not ended.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether a response has begun and not ended.
    pub(super) fn is_sending(&self) -> bool {
        self.begun > 0
    }

    /// The highest stream so far.
    pub(super) fn last_stream(&self) -> u32 {
        self.last
    }

    /// The client has sent HEADERS. `false` if they are ignored because of GOAWAY.
    pub(super) fn request(&mut self, id: u32) -> bool {
        // Others are trailers, or errors that h2 finds.
        if id > self.last && id <= self.served {
            self.last = id;
            self.streams.push(Stream {
                id,
                window: Window::new(self.initial),
                begun: false,
            });
        }
        id <= self.served
    }

    /// GOAWAY is sent: h2 ignores higher streams, and never ends them (RFC 9113 §6.8).
    pub(super) fn go_away(&mut self, last: u32) {
        self.served = last;
        self.last = self.last.min(last);
        while let Some(id) = self.streams.last().map(|stream| stream.id)
            && id > last
        {
            self.end(id);
        }
    }

    /// HEADERS of a response are sent, and DATA follows.
    pub(super) fn begin_response(&mut self, id: u32, now: Now<'_>) {
        let times = self.times;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else {
            return;
        };
        if !std::mem::replace(&mut stream.begun, true) {
            self.begun += 1;
            stream.window.change(0, true, &times, now);
            if self.connection.progress.blocked.is_none() {
                self.connection.change(0, true, &times, now);
            }
        }
    }

    /// DATA of so many bytes is sent.
    pub(super) fn data(&mut self, id: u32, length: u32, now: Now<'_>) {
        let (by, times) = (-i64::from(length), self.times);
        self.connection.progress.take(u64::from(length));
        self.connection.change(by, self.begun > 0, &times, now);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) {
            stream.window.progress.take(u64::from(length));
            stream.window.change(by, stream.begun, &times, now);
        }
    }

    /// The response has ended, or the stream was reset.
    pub(super) fn end(&mut self, id: u32) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else {
            return;
        };
        self.begun -= usize::from(self.streams.remove(at).begun);
        if self.begun == 0 {
            self.connection.progress = SendProgress::default();
        }
        if self.streams.is_empty() && self.streams.capacity() > 16 {
            self.streams = Vec::new();
        }
    }

    /// The client has enlarged a window; that of the connection for stream 0.
    pub(super) fn enlarge(&mut self, id: u32, by: u32, now: Now<'_>) {
        let (by, times) = (i64::from(by & 0x7fff_ffff), self.times);
        if id == 0 {
            return self.connection.change(by, self.begun > 0, &times, now);
        }
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) {
            stream.window.change(by, stream.begun, &times, now);
        }
    }

    /// The client has changed SETTINGS_INITIAL_WINDOW_SIZE.
    pub(super) fn set_initial(&mut self, size: u32, now: Now<'_>) {
        let (by, times) = (i64::from(size) - self.initial, self.times);
        self.initial += by;
        for stream in &mut self.streams {
            stream.window.change(by, stream.begun, &times, now);
        }
    }

    /// Whether no response can go on before the client enlarges a window.
    pub(super) fn are_exhausted(&self) -> bool {
        let is_exhausted = |stream: &Stream| {
            stream.begun && (stream.window.size <= 0 || self.connection.size <= 0)
        };
        !self.streams.is_empty() && self.streams.iter().all(is_exhausted)
    }

    /// Since when a stream has been blocked, and the earliest deadline.
    pub(super) fn blocked(&self) -> Option<(Moment, Moment)> {
        if self.begun == 0 {
            return None;
        }
        let streams = self.streams.iter().map(|stream| &stream.window);
        let windows = streams.chain([&self.connection]);
        let blocked = windows.filter_map(|window| window.progress.blocked());
        blocked.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIMES: ConnectionTimeouts = ConnectionTimeouts::OF_TESTS;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    /// Windows with one response that has begun at 0 and exhausted its window.
    fn exhausted() -> SendWindows {
        let mut windows = SendWindows::new(TIMES);
        windows.enlarge(0, 1 << 20, &|| at(0));
        windows.request(1);
        windows.begin_response(1, &|| at(0));
        windows.data(1, 65_535, &|| at(0));
        windows
    }

    fn deadline(windows: &SendWindows) -> Option<Moment> {
        windows.blocked().map(|(_, deadline)| deadline)
    }

    #[test]
    fn an_exhausted_window_has_a_deadline() {
        let mut windows = SendWindows::new(TIMES);
        windows.request(1);
        assert_eq!(deadline(&windows), None, "no response");
        windows.begin_response(1, &|| at(0));
        windows.data(1, 65_534, &|| at(0));
        assert_eq!(deadline(&windows), None, "one byte is left");
        windows.data(1, 1, &|| at(1));
        assert_eq!(deadline(&windows), Some(at(31)));
        windows.enlarge(1, 10, &|| at(2));
        assert_eq!(deadline(&windows), Some(at(31)), "the connection's window");
        windows.enlarge(0, 10, &|| at(3));
        assert_eq!(deadline(&windows), None);
        windows.end(1);
        assert_eq!((deadline(&windows), windows.open_streams()), (None, 0));
    }

    #[test]
    fn an_initial_window_of_zero_blocks_a_response() {
        let mut windows = SendWindows::new(TIMES);
        windows.set_initial(0, &|| at(0));
        windows.request(1);
        assert_eq!(
            deadline(&windows),
            None,
            "the upstream is slow, not the client"
        );
        windows.begin_response(1, &|| at(50));
        assert_eq!(deadline(&windows), Some(at(80)));
        windows.set_initial(5, &|| at(51));
        assert_eq!(deadline(&windows), None);
        windows.set_initial(0, &|| at(52));
        assert_eq!(deadline(&windows), Some(at(81)), "it has taken nothing");
    }

    #[test]
    fn responses_are_stuck_once_each_waits_for_a_window() {
        let mut windows = exhausted();
        assert!(windows.are_exhausted());
        windows.request(3);
        assert!(!windows.are_exhausted(), "a response has not begun");
        windows.begin_response(3, &|| at(5));
        assert!(!windows.are_exhausted(), "it has a window");
        windows.data(3, 65_535, &|| at(5));
        assert!(windows.are_exhausted());
        windows.enlarge(1, 10, &|| at(6));
        assert!(!windows.are_exhausted());
        windows.end(1);
        windows.end(3);
        assert!(!windows.are_exhausted(), "there is none");
    }

    #[test]
    fn each_stream_has_its_own_deadline() {
        let mut windows = exhausted();
        windows.request(3);
        windows.begin_response(3, &|| at(5));
        for second in 5..20 {
            windows.data(3, 20_000, &|| at(second));
            windows.enlarge(3, 20_000, &|| at(second));
        }
        assert_eq!(deadline(&windows), Some(at(30)), "of the first");
        windows.end(1);
        assert_eq!(deadline(&windows), None);
    }

    #[test]
    fn goaway_ends_the_streams_above_its_own() {
        let mut windows = exhausted();
        assert!(windows.request(3) && windows.request(5));
        windows.begin_response(5, &|| at(1));
        windows.go_away(0x7fff_ffff);
        assert!(windows.request(7), "the first GOAWAY excludes none");
        windows.go_away(3);
        assert_eq!((windows.open_streams(), windows.last_stream()), (2, 3));
        assert!(windows.request(3), "trailers");
        for id in [5, 7, 9] {
            assert!(!windows.request(id), "{id}");
        }
        assert_eq!((windows.open_streams(), windows.last_stream()), (2, 3));
        windows.end(1);
        windows.end(3);
        assert_eq!((deadline(&windows), windows.is_sending()), (None, false));
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let mut windows = exhausted();
        for second in 1..30 {
            windows.enlarge(1, 1, &|| at(second));
            windows.data(1, 1, &|| at(second));
        }
        let due = deadline(&windows).unwrap();
        assert!(due < at(31), "{due:?}");
    }

    #[test]
    fn an_open_window_stops_the_deadline() {
        let mut windows = exhausted();
        windows.enlarge(1, 1000, &|| at(10));
        // The upstream sends nothing for a minute.
        windows.data(1, 1000, &|| at(70));
        // 20 s were left, and one second was earned.
        assert_eq!(deadline(&windows), Some(at(91)));
    }

    #[test]
    fn a_client_that_reads_at_the_least_rate_is_in_time() {
        let mut windows = exhausted();
        for second in 1..1000 {
            windows.enlarge(1, 1000, &|| at(second));
            windows.data(1, 1000, &|| at(second));
            assert!(deadline(&windows) > Some(at(second + 1)), "{second}");
        }
    }
}
