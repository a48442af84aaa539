//! The front's side of a connection over HTTP/2: right answers and faults, of
//! streams and of the whole connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use socket2::SockRef;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::faults::{After, FIRST_BYTE, Fault, HELD, Message, OPEN, Right, WHOLE};
use super::freeze::Stream;
use super::front::{Asked, Excess, Shared, Sky};
use super::world::{HOSTILE, Kind};
use crate::dice::Dice;

const VERSION: Version = Version::HTTP_2;
/// So many requests that were given up while the front was frozen are still
/// taken: a server's process counts what it reads.
const MOST_LATE: usize = 10_000;
/// How long what was sent on a connection may take to leave before its end.
const FLUSH: Duration = Duration::from_millis(20);
/// Why streams are reset.
const REASONS: [Reason; 6] = [
    Reason::NO_ERROR,
    Reason::REFUSED_STREAM,
    Reason::REFUSED_STREAM,
    Reason::INTERNAL_ERROR,
    Reason::CANCEL,
    Reason::ENHANCE_YOUR_CALM,
];

/// Answers on this connection until it ends; with 503 alone where it is one too
/// many.
pub(crate) async fn serve(stream: Stream, shared: Arc<Shared>, is_excess: bool, mut dice: Dice) {
    let mut sky = shared.sky.subscribe();
    let socket = SockRef::from(&stream).try_clone().unwrap();
    let mut builder = Builder::new();
    builder.max_pending_accept_reset_streams(MOST_LATE);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    let mut streams = JoinSet::new();
    loop {
        let after = tokio::select! {
            Some(after) = streams.join_next() => after.unwrap(),
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else {
                    // Those that are under way see the end.
                    let all = async { while streams.join_next().await.is_some() {} };
                    let _ = timeout(FLUSH, all).await;
                    return;
                };
                let dice = Dice::new(dice.next());
                let at_once = streams.len();
                streams.spawn(answer(request, respond, shared.clone(), is_excess, at_once, dice));
                After::Keep
            }
            () = down(&mut sky), if streams.is_empty() => After::Reset,
        };
        match after {
            After::Keep => continue,
            // All streams end by that.
            After::Close => {}
            After::Reset => {
                // Where it is closed already, it needs none.
                let _ = socket.set_linger(Some(Duration::ZERO));
                return;
            }
            After::Garbage => {
                let bytes: Vec<_> = (0..dice.between(9, 400))
                    .map(|_| dice.next() as u8)
                    .collect();
                // A gateway that reads nothing gets none of it.
                _ = socket.send(&bytes);
            }
            After::Silent => {
                sleep(OPEN).await;
                // The request that began it is unanswered.
                return shared.world.effect(Kind::SilentConnection, VERSION);
            }
            After::GoAway(None) => {
                connection.graceful_shutdown();
                continue;
            }
            After::GoAway(Some(reason)) => {
                connection.abrupt_shutdown(reason);
                continue;
            }
        }
        let _ = timeout(FLUSH, poll_fn(|cx| connection.poll_closed(cx))).await;
        return;
    }
}

async fn down(sky: &mut watch::Receiver<Sky>) {
    // Its sender outlives all connections.
    let _ = sky.wait_for(|sky| *sky == Sky::Down).await;
}

/// Answers a request, beside which there are so many on its connection.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    shared: Arc<Shared>,
    is_excess: bool,
    at_once: usize,
    mut dice: Dice,
) -> After {
    let cap = shared.sky.borrow().excess(at_once);
    let asked = asked(&request, is_excess || cap == Some(Excess::Unavailable));
    let Some((fault, right)) = shared.take(&asked, &mut dice).await else {
        return After::Reset;
    };
    if matches!(cap, Some(Excess::Closed | Excess::Refused)) {
        shared.world.effect(Kind::ConnectionCap, VERSION);
        respond.send_reset(Reason::REFUSED_STREAM);
        return After::Keep;
    }
    play(fault, &mut respond, &right, &shared, &mut dice).await
}

fn asked(request: &Request<RecvStream>, is_excess: bool) -> Asked {
    let field = |name| {
        let value = request.headers().get(name);
        let value = value.and_then(|value: &HeaderValue| value.to_str().ok());
        value.unwrap_or("").to_owned()
    };
    let target = request.uri().path_and_query();
    Asked {
        version: VERSION,
        is_get: request.method() == http::Method::GET,
        target: target.map_or("", |target| target.as_str()).to_owned(),
        key: field("x-api-key"),
        via: field("via"),
        is_excess,
    }
}

/// Answers with a fault. A gateway that has gone away meanwhile is what some
/// faults lead to, and no error.
async fn play(
    fault: Fault,
    respond: &mut SendResponse<Bytes>,
    right: &Right,
    shared: &Shared,
    dice: &mut Dice,
) -> After {
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others answer at once")]
    match fault {
        Fault::CloseBefore => return After::Close,
        Fault::ResetBefore => {
            respond.send_reset(*dice.pick(&REASONS));
            return After::Keep;
        }
        Fault::ResetInHead => return After::Reset,
        Fault::Garbage => return After::Garbage,
        Fault::Silent => return After::Silent,
        Fault::Mute => {
            let _ = timeout(HELD, poll_fn(|cx| respond.poll_reset(cx))).await;
            return After::Keep;
        }
        Fault::SlowFirstByte => {
            sleep(FIRST_BYTE.mul_f64(dice.between(5, 130) as f64 / 100.0)).await;
        }
        Fault::Interim => {
            let mut early = Response::new(());
            *early.status_mut() = StatusCode::EARLY_HINTS;
            // One that was given up gets none.
            let _ = respond.send_informational(early);
        }
        _ => {}
    }
    let message = fault.message(right, dice);
    let head = message.response(fault != Fault::Chunked);
    let Ok(mut stream) = respond.send_response(head, false) else {
        return After::Keep;
    };
    match body(fault, &message, &mut stream, shared, dice).await {
        Ok(after) => after,
        Err(_gone) => After::Keep,
    }
}

/// Sends the body.
async fn body(
    fault: Fault,
    message: &Message,
    stream: &mut SendStream<Bytes>,
    shared: &Shared,
    dice: &mut Dice,
) -> Result<After, h2::Error> {
    let whole = message.body.clone();
    let half = whole.slice(..whole.len() / 2);
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others send it at once")]
    match fault {
        Fault::Chunked => {
            for piece in message.pieces(5) {
                stream.send_data(piece, false)?;
            }
            stream.send_data(Bytes::new(), true)?;
        }
        Fault::Drip => {
            let pieces = dice.between(2, 12);
            let pause = WHOLE.mul_f64(dice.between(5, 130) as f64 / 100.0) / pieces as u32;
            for piece in message.pieces(pieces) {
                stream.send_data(piece, false)?;
                sleep(pause).await;
            }
            stream.send_data(Bytes::new(), true)?;
        }
        Fault::ResetAfterHead => {
            // What is reset at once is not sent at all.
            sleep(FLUSH).await;
            stream.send_reset(*dice.pick(&REASONS));
        }
        Fault::Truncate => {
            stream.send_data(half, false)?;
            sleep(FLUSH).await;
            match dice.below(3) {
                0 => stream.send_reset(*dice.pick(&REASONS)),
                1 => stream.send_data(Bytes::new(), true)?,
                _ => return Ok(After::Close),
            }
        }
        Fault::BadChunk => {
            stream.send_data(whole, false)?;
            sleep(FLUSH).await;
            stream.send_reset(Reason::INTERNAL_ERROR);
        }
        Fault::Surplus => {
            stream.send_data(whole, false)?;
            let mut trailers = HeaderMap::new();
            trailers.insert("x-chaos", HeaderValue::from_static(HOSTILE));
            stream.send_trailers(trailers)?;
        }
        Fault::Stall => {
            stream.send_data(half, false)?;
            // By a reset of the stream, or the end of the connection.
            let given_up = timeout(HELD, poll_fn(|cx| stream.poll_reset(cx))).await;
            if given_up.is_ok() {
                shared.world.effect(Kind::StalledBody, VERSION);
            }
        }
        Fault::CloseAfter => {
            stream.send_data(whole, true)?;
            sleep(Duration::from_millis(dice.between(0, 40))).await;
            let ends = [
                After::Close,
                After::GoAway(None),
                After::GoAway(Some(Reason::NO_ERROR)),
                After::GoAway(Some(Reason::INTERNAL_ERROR)),
            ];
            return Ok(*dice.pick(&ends));
        }
        // It goes on, as it seems.
        Fault::Oversize => {
            stream.send_data(whole, false)?;
            let _ = timeout(HELD, poll_fn(|cx| stream.poll_reset(cx))).await;
        }
        _ => stream.send_data(whole, true)?,
    }
    Ok(After::Keep)
}

impl Message {
    fn response(&self, has_length: bool) -> Response<()> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.fields {
            response = response.header(name, value);
        }
        for length in self.lengths.iter().filter(|_| has_length) {
            response = response.header("content-length", *length);
        }
        response.body(()).unwrap()
    }
}
