//! Bounds on the frames of a connection that cost the server work and the client
//! nothing. Pure: `now` is an argument.
//!
//! h2 has bounds of its own on some of them (streams that are reset before they
//! are accepted, resets that it sends for protocol errors, CONTINUATION, small
//! DATA), but none on resets of accepted streams, pings and settings.

use std::time::Duration;

use crate::clock::Moment;
pub(super) use crate::meter::FrameFlood;

/// The period for which frames are counted.
const PERIOD: Duration = Duration::from_secs(1);
/// RST_STREAM by either side, in a period. A client that provokes the server into
/// resetting streams (CVE-2025-8671) costs as much as one that resets them itself
/// (CVE-2023-44487).
const MAX_RESETS: u32 = 100;
/// RST_STREAM by either side, of a connection.
const MAX_RESETS_TOTAL: u32 = 10_000;
/// PING, in a period (CVE-2019-9512).
const MAX_PINGS: u32 = 100;
/// Acknowledgements of PINGs that were not sent, of a connection: there is no use for one.
const MAX_STRAY_ACKS: u32 = 10;
/// SETTINGS and their acknowledgements, in a period (CVE-2019-9515).
const MAX_SETTINGS: u32 = 50;
/// DATA without content that does not end its stream, in a period (CVE-2019-9518).
const MAX_EMPTY_DATA: u32 = 100;
/// Frames that only steer the connection (PRIORITY, WINDOW_UPDATE and unknown
/// ones), and HEADERS that GOAWAY has excluded, in a period.
const MAX_CONTROL: u32 = 1000;
/// How many more of them each DATA frame that is sent allows, and after how many of
/// its bytes another: a client may acknowledge each few KiB that it reads in the windows
/// of its stream and of the connection, also long after they were sent.
const CONTROL_PER_DATA: u32 = 4;
const DATA_PER_CONTROL: u32 = 1024;
/// The most that are allowed so at a time.
const MAX_CONTROL_CREDIT: u32 = 1 << 20;
/// CONTINUATION in one header block (CVE-2024-27316).
const MAX_CONTINUATIONS: u32 = 16;

/// A kind of frames that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Reset,
    Ping,
    /// An acknowledgement of a PING that was not sent.
    StrayAck,
    Settings,
    EmptyData,
    Control,
    Continuation,
}

/// Counts the frames of a connection.
#[derive(Debug)]
pub(super) struct FrameRates {
    since: Moment,
    resets: u32,
    pings: u32,
    stray_acks: u32,
    settings: u32,
    empty_data: u32,
    control: u32,
    /// How many of these the DATA that was sent still allows.
    control_credit: u32,
    resets_total: u32,
    continuations: u32,
}

impl FrameRates {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            since: now,
            resets: 0,
            pings: 0,
            stray_acks: 0,
            settings: 0,
            empty_data: 0,
            control: 0,
            control_credit: 0,
            resets_total: 0,
            continuations: 0,
        }
    }

    /// Begins another period where the current one is over.
    pub(super) fn advance(&mut self, now: Moment) {
        if now.since(self.since) >= PERIOD {
            *self = Self {
                control_credit: self.control_credit,
                resets_total: self.resets_total,
                stray_acks: self.stray_acks,
                continuations: self.continuations,
                ..Self::new(now)
            };
        }
    }

    /// Counts a frame. An error where there are too many of its kind.
    pub(super) fn count(&mut self, frame: Counted) -> Result<(), FrameFlood> {
        let (count, bound, flood) = match frame {
            Counted::Reset => {
                self.resets_total += 1;
                if self.resets_total > MAX_RESETS_TOTAL {
                    return Err(FrameFlood::Resets);
                }
                (&mut self.resets, MAX_RESETS, FrameFlood::Resets)
            }
            Counted::Ping => (&mut self.pings, MAX_PINGS, FrameFlood::Pings),
            Counted::StrayAck => (&mut self.stray_acks, MAX_STRAY_ACKS, FrameFlood::Pings),
            Counted::Settings => (&mut self.settings, MAX_SETTINGS, FrameFlood::Settings),
            Counted::EmptyData => (&mut self.empty_data, MAX_EMPTY_DATA, FrameFlood::EmptyData),
            Counted::Control => {
                if let Some(left) = self.control_credit.checked_sub(1) {
                    self.control_credit = left;
                    return Ok(());
                }
                (&mut self.control, MAX_CONTROL, FrameFlood::Control)
            }
            Counted::Continuation => (
                &mut self.continuations,
                MAX_CONTINUATIONS,
                FrameFlood::Continuations,
            ),
        };
        *count += 1;
        match *count > bound {
            true => Err(flood),
            false => Ok(()),
        }
    }

    /// A header block is complete.
    pub(super) fn end_header_block(&mut self) {
        self.continuations = 0;
    }

    /// A DATA frame of so many bytes is sent.
    pub(super) fn sent_data(&mut self, length: u32) {
        let allowed = CONTROL_PER_DATA + length / DATA_PER_CONTROL;
        self.control_credit = (self.control_credit + allowed).min(MAX_CONTROL_CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    /// How many frames pass when one comes every `pause` milliseconds.
    fn passing(frame: Counted, pause: u64) -> Option<u32> {
        let mut rates = FrameRates::new(at(0));
        (0..30_000).find(|nth: &u32| {
            rates.advance(at(u64::from(*nth) * pause));
            rates.count(frame).is_err()
        })
    }

    #[test]
    fn each_kind_has_its_bound() {
        let rows = [
            (Counted::Reset, 0, Some(100)),
            (Counted::Ping, 0, Some(100)),
            (Counted::StrayAck, 0, Some(10)),
            (Counted::StrayAck, 2000, Some(10)),
            (Counted::Settings, 0, Some(50)),
            (Counted::EmptyData, 0, Some(100)),
            (Counted::Control, 0, Some(1000)),
            (Counted::Continuation, 0, Some(16)),
            (Counted::Ping, 11, None),
            (Counted::Settings, 21, None),
            (Counted::Reset, 11, Some(10_000)),
            (Counted::Continuation, 2000, Some(16)),
        ];
        for (frame, pause, expected) in rows {
            assert_eq!(
                passing(frame, pause),
                expected,
                "{frame:?} every {pause} ms"
            );
        }
    }

    #[test]
    fn data_that_is_sent_allows_window_updates() {
        let rows = [
            ("small frames", 500, 100, 0, 3000),
            (
                "large frames, read in steps of 1 KiB",
                500,
                16 * 1024,
                0,
                11_000,
            ),
            ("acknowledged later", 500, 16 * 1024, 5000, 11_000),
            ("at most", 1 << 20, 16 * 1024, 0, (1 << 20) + 1000),
        ];
        for (name, frames, length, later, expected) in rows {
            let mut rates = FrameRates::new(at(0));
            for _ in 0..frames {
                rates.sent_data(length);
            }
            rates.advance(at(later));
            let passed = (0..).find(|_| rates.count(Counted::Control).is_err());
            assert_eq!(passed, Some(expected), "{name}");
        }
    }

    #[test]
    fn a_complete_header_block_allows_another() {
        let mut rates = FrameRates::new(at(0));
        for _ in 0..10 {
            for _ in 0..16 {
                assert_eq!(rates.count(Counted::Continuation), Ok(()));
            }
            rates.end_header_block();
        }
    }
}
