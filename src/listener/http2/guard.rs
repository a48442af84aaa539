//! Judges the frames of a connection as they pass: floods, slow header blocks, and
//! the windows that a client does not open.

use super::MAX_STREAMS;
use super::frames::{FrameHead, FrameScanner, FrameSink, flag, kind};
use super::rates::{Counted, FrameFlood, FrameRates};
use super::windows::SendWindows;
use crate::clock::{Clock, Moment};
use crate::listener::watch::ConnectionTimeouts;

/// The length of what precedes a client's first frame (RFC 9113 §3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.5.2).
const INITIAL_WINDOW_SIZE: u16 = 4;
/// The most streams whose response has not ended. Those beyond [`MAX_STREAMS`] are
/// refused with RST_STREAM, which is late where many requests are read at once.
const MAX_OPEN_STREAMS: usize = 2 * MAX_STREAMS as usize;
/// Error codes (RFC 9113 §7).
pub(super) const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// Why the guard ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameFault {
    Flood(FrameFlood),
    /// The first frame is not SETTINGS (RFC 9113 §3.4), which h2 does not check.
    NoSettings,
}

impl FrameFault {
    /// The code of GOAWAY.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Flood(_) => ENHANCE_YOUR_CALM,
            Self::NoSettings => PROTOCOL_ERROR,
        }
    }
}

/// What is known of the frames on a connection.
pub(super) struct FrameGuard {
    received: FrameScanner,
    sent: FrameScanner,
    clock: Clock,
    state: GuardState,
}

struct GuardState {
    rates: FrameRates,
    windows: SendWindows,
    /// Whether a header block is incomplete.
    in_header_block: bool,
    /// Whether a header block has been received since this was last asked.
    has_request: bool,
    /// PINGs that were sent and are not acknowledged.
    open_pings: u32,
    /// Whether a header block that is sent is incomplete.
    in_sent_block: bool,
    /// Whether a frame has been received.
    has_begun: bool,
    /// The last initial window in SETTINGS that are incomplete.
    initial_window: Option<u32>,
    fault: Option<FrameFault>,
    /// A flood that h2 has found.
    flood_of_h2: Option<FrameFlood>,
}

impl GuardState {
    fn count(&mut self, frame: Counted) {
        if let Err(flood) = self.rates.count(frame) {
            self.fault.get_or_insert(FrameFault::Flood(flood));
        }
    }
}

impl FrameGuard {
    pub(super) fn new(times: ConnectionTimeouts, clock: &Clock) -> Self {
        Self {
            received: FrameScanner::after(PREFACE),
            sent: FrameScanner::after(0),
            clock: clock.clone(),
            state: GuardState {
                rates: FrameRates::new(clock.now()),
                windows: SendWindows::new(times),
                in_header_block: false,
                has_request: false,
                open_pings: 0,
                in_sent_block: false,
                has_begun: false,
                initial_window: None,
                fault: None,
                flood_of_h2: None,
            },
        }
    }

    /// Judges bytes that the client has sent. Returns whether a request was among
    /// them.
    pub(super) fn receive(&mut self, bytes: &[u8], now: Moment) -> bool {
        let state = &mut self.state;
        state.rates.advance(now);
        state.has_request = false;
        self.received.scan(bytes, &mut Received { state, now });
        state.has_request
    }

    /// Judges bytes that are sent to the client.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let (state, clock) = (&mut self.state, &self.clock);
        self.sent.scan(bytes, &mut Sent { state, clock });
    }

    /// Whether the client is within something that it must complete soon: the
    /// preface, a header block, or a frame other than DATA.
    pub(super) fn in_head(&self) -> bool {
        !self.state.has_begun
            || self.state.in_header_block
            || !self.received.is_between_frames() && !self.received.in_data()
    }

    /// Why the connection must end.
    pub(super) fn fault(&self) -> Option<FrameFault> {
        self.state.fault
    }

    /// What the client has sent too much of.
    pub(super) fn flood(&self) -> Option<FrameFlood> {
        match self.state.fault {
            Some(FrameFault::Flood(flood)) => Some(flood),
            Some(FrameFault::NoSettings) | None => self.state.flood_of_h2,
        }
    }

    /// The windows of the client.
    pub(super) fn windows(&self) -> &SendWindows {
        &self.state.windows
    }

    /// GOAWAY (RFC 9113 §6.8) with the last stream, where it may be sent now.
    pub(super) fn goaway(&self, code: u32) -> Option<Vec<u8>> {
        let head = FrameHead {
            length: 8,
            kind: kind::GOAWAY,
            flags: 0,
            stream: 0,
        };
        let last = self.state.windows.last_stream().to_be_bytes();
        let may_send = self.sent.is_between_frames() && !self.state.in_sent_block;
        may_send.then(|| [&head.encode()[..], &last, &code.to_be_bytes()].concat())
    }
}

/// Takes the client's frames.
struct Received<'a> {
    state: &'a mut GuardState,
    now: Moment,
}

impl FrameSink for Received<'_> {
    fn head(&mut self, head: &FrameHead) {
        let state = &mut *self.state;
        let is_settings = head.kind == kind::SETTINGS && !head.has(flag::ACK);
        if !std::mem::replace(&mut state.has_begun, true) && !is_settings {
            state.fault.get_or_insert(FrameFault::NoSettings);
        }
        match head.kind {
            kind::HEADERS => {
                state.in_header_block = true;
                if !state.windows.request(head.stream) {
                    state.count(Counted::Control);
                }
                if state.windows.open_streams() > MAX_OPEN_STREAMS {
                    let flood = FrameFault::Flood(FrameFlood::Resets);
                    state.fault.get_or_insert(flood);
                }
            }
            kind::DATA => {
                if head.length == 0 && !head.has(flag::END_STREAM) {
                    state.count(Counted::EmptyData);
                }
            }
            kind::RST_STREAM => {
                state.windows.end(head.stream);
                state.count(Counted::Reset);
            }
            kind::PING if head.has(flag::ACK) => match state.open_pings.checked_sub(1) {
                Some(left) => state.open_pings = left,
                None => state.count(Counted::StrayAck),
            },
            kind::PING => state.count(Counted::Ping),
            kind::SETTINGS => state.count(Counted::Settings),
            kind::CONTINUATION => state.count(Counted::Continuation),
            _ => state.count(Counted::Control),
        }
    }

    fn item(&mut self, head: &FrameHead, item: &[u8]) {
        let (state, now) = (&mut *self.state, self.now);
        match (head.kind, item) {
            (kind::SETTINGS, [high, low, value @ ..])
                if u16::from_be_bytes([*high, *low]) == INITIAL_WINDOW_SIZE =>
            {
                // The last one applies, as in h2: to apply each would walk all streams
                // for six bytes.
                state.initial_window = Some(number(value));
            }
            (kind::WINDOW_UPDATE, by) => state.windows.enlarge(head.stream, number(by), &|| now),
            // Only padding.
            (kind::DATA, [padding])
                if u32::from(*padding) + 1 >= head.length && !head.has(flag::END_STREAM) =>
            {
                state.count(Counted::EmptyData);
            }
            _ => {}
        }
    }

    fn end(&mut self, head: &FrameHead) {
        if let Some(size) = self.state.initial_window.take() {
            // h2 refuses more than 2^31 - 1.
            self.state.windows.set_initial(size, &|| self.now);
        }
        let is_block = matches!(head.kind, kind::HEADERS | kind::CONTINUATION);
        if is_block && head.has(flag::END_HEADERS) {
            self.state.in_header_block = false;
            self.state.has_request = true;
            self.state.rates.end_header_block();
        }
    }
}

/// Takes the frames that are sent to the client.
struct Sent<'a> {
    state: &'a mut GuardState,
    clock: &'a Clock,
}

impl FrameSink for Sent<'_> {
    fn head(&mut self, head: &FrameHead) {
        let (state, now) = (&mut *self.state, || self.clock.now());
        match head.kind {
            kind::HEADERS if head.has(flag::END_STREAM) => {
                state.windows.end(head.stream);
            }
            kind::HEADERS => state.windows.begin_response(head.stream, &now),
            kind::DATA => {
                state.rates.sent_data(head.length);
                state.windows.data(head.stream, head.length, &now);
                if head.has(flag::END_STREAM) {
                    state.windows.end(head.stream);
                }
            }
            kind::RST_STREAM => {
                state.windows.end(head.stream);
                state.count(Counted::Reset);
            }
            kind::PING if !head.has(flag::ACK) => state.open_pings += 1,
            _ => {}
        }
        if matches!(head.kind, kind::HEADERS | kind::CONTINUATION) {
            state.in_sent_block = !head.has(flag::END_HEADERS);
        }
    }

    fn item(&mut self, head: &FrameHead, item: &[u8]) {
        if let (kind::GOAWAY, Some((last, code))) = (head.kind, item.split_at_checked(4)) {
            self.state.windows.go_away(number(last));
            if number(code) == ENHANCE_YOUR_CALM {
                self.state.flood_of_h2.get_or_insert(FrameFlood::Other);
            }
        }
    }

    fn end(&mut self, _: &FrameHead) {}
}

/// A number in network byte order.
fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}
