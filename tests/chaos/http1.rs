//! The front's side of a connection over HTTP/1.1: right answers and faults, byte
//! by byte.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{sleep, timeout};

use super::faults::{After, FIRST_BYTE, Fault, HELD, Message, OPEN, Right, WHOLE};
use super::freeze::Stream;
use super::front::{Asked, Shared, Sky};
use super::world::{HOSTILE, Kind};
use crate::dice::Dice;
use crate::support::wire::{Head, Wire};

/// Answers on this connection until it ends; with 503 alone where it is one too
/// many.
pub(crate) async fn serve(stream: Stream, shared: Arc<Shared>, is_excess: bool, mut dice: Dice) {
    let mut sky = shared.sky.subscribe();
    let mut wire = Wire::new(stream);
    loop {
        // An idle connection may be reset in bad weather; one that is used in
        // such is at the mercy of its faults.
        let head = tokio::select! {
            head = wire.head() => head,
            _ = sky.wait_for(|sky| *sky == Sky::Down) => return wire.reset(),
        };
        let Ok(head) = head else {
            return;
        };
        let asked = asked(&head, is_excess);
        let Some((fault, right)) = shared.take(&asked, &mut dice).await else {
            return wire.reset();
        };
        match play(fault, &mut wire, &right, &shared, &mut dice).await {
            After::Keep => {}
            After::Reset => return wire.reset(),
            After::Silent => return silent(wire, &shared).await,
            After::Close => return,
        }
    }
}

fn asked(head: &Head, is_excess: bool) -> Asked {
    let field = |name| head.field(name).unwrap_or("").to_owned();
    Asked {
        is_get: head.line.starts_with("GET /"),
        target: head.target().to_owned(),
        key: field("x-api-key"),
        via: field("via"),
        is_excess,
    }
}

/// Neither reads nor closes the connection for a while. What has come by then is
/// never read.
async fn silent(mut wire: Wire<Stream>, shared: &Shared) {
    sleep(OPEN).await;
    if wire.more().now_or_never() == Some(true) {
        shared.world.effect(Kind::SilentConnection);
    }
}

/// Answers with a fault. The gateway may have closed the connection by then, which
/// is no error.
async fn play(
    fault: Fault,
    wire: &mut Wire<Stream>,
    right: &Right,
    shared: &Shared,
    dice: &mut Dice,
) -> After {
    let message = fault.message(right, dice);
    let whole = message.bytes();
    if fault == Fault::Mute {
        held(wire).await;
        return After::Close;
    }
    if fault == Fault::Stall {
        let head = whole.len() - message.body.len();
        let _ = wire.send(&whole[..head + message.body.len() / 2]).await;
        if held(wire).await {
            shared.world.effect(Kind::StalledBody);
        }
        return After::Close;
    }
    if fault == Fault::Drip {
        return drip(wire, &whole, dice).await;
    }
    if fault == Fault::SlowFirstByte {
        sleep(FIRST_BYTE.mul_f64(dice.between(5, 130) as f64 / 100.0)).await;
    }
    let (bytes, after) = bytes_and_end(fault, &message, right, dice);
    if wire.send(bytes).await.is_err() {
        return After::Close;
    }
    if fault == Fault::CloseAfter {
        // The gateway may be about to use the connection again.
        sleep(Duration::from_millis(dice.between(0, 40))).await;
    }
    after
}

/// Sends an answer in a few pieces, with pauses.
async fn drip(wire: &mut Wire<Stream>, whole: &[u8], dice: &mut Dice) -> After {
    let pieces = dice.between(2, 12);
    let pause = WHOLE.mul_f64(dice.between(5, 130) as f64 / 100.0) / pieces as u32;
    for piece in whole.chunks(whole.len().div_ceil(pieces as usize)) {
        if wire.send(piece).await.is_err() {
            return After::Close;
        }
        sleep(pause).await;
    }
    After::Keep
}

/// What is sent at once for a fault, and what happens to the connection.
fn bytes_and_end(
    fault: Fault,
    message: &Message,
    right: &Right,
    dice: &mut Dice,
) -> (Vec<u8>, After) {
    let whole = message.bytes();
    let head = whole.len() - message.body.len();
    match fault {
        Fault::Chunked => (message.chunked("0\r\n\r\n"), After::Keep),
        Fault::BadChunk => (message.chunked(&format!("{HOSTILE}\r\n")), After::Close),
        Fault::Interim => {
            let early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
            ([&early[..], &whole].concat(), After::Keep)
        }
        Fault::CloseBefore => (Vec::new(), After::Close),
        Fault::ResetBefore => (Vec::new(), After::Reset),
        Fault::ResetInHead => (whole[..dice.below(head)].to_vec(), After::Reset),
        Fault::ResetAfterHead => (whole[..head].to_vec(), After::Reset),
        Fault::Truncate => {
            let half = head + message.body.len() / 2;
            (whole[..half].to_vec(), After::Close)
        }
        Fault::Surplus => {
            // An unrequested answer behind the right one.
            let hostile = Right {
                key: HOSTILE.to_owned(),
                ..right.clone()
            };
            let more = Fault::Echo.message(&hostile, dice);
            ([whole, more.bytes()].concat(), After::Keep)
        }
        Fault::Garbage => {
            let bytes = (0..dice.between(1, 400)).map(|_| dice.next() as u8);
            (bytes.collect(), After::Close)
        }
        Fault::Silent => (whole, After::Silent),
        Fault::TooLong | Fault::CloseAfter => (whole, After::Close),
        Fault::None
        | Fault::SlowFirstByte
        | Fault::Drip
        | Fault::Mute
        | Fault::Stall
        | Fault::TooShort
        | Fault::TwoLengths
        | Fault::BadJson
        | Fault::Html
        | Fault::Coded
        | Fault::Oversize
        | Fault::Redirect
        | Fault::Failed(_)
        | Fault::Throttled
        | Fault::Refused
        | Fault::Echo => (whole, After::Keep),
    }
}

/// Waits until the gateway gives up, and not for ever; returns whether it has.
async fn held(wire: &mut Wire<Stream>) -> bool {
    let gone = async { while wire.more().await {} };
    timeout(HELD, gone).await.is_ok()
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let mut head = self.head();
        for length in &self.lengths {
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }

    /// The same in chunks, with this behind the last.
    fn chunked(&self, end: &str) -> Vec<u8> {
        let mut bytes = self.head().into_bytes();
        bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        for chunk in self.body.chunks(1000) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(end.as_bytes());
        bytes
    }

    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} Chaos\r\n", self.status);
        let fields = self.fields.iter();
        head.extend(fields.map(|(name, value)| format!("{name}: {value}\r\n")));
        head
    }
}
