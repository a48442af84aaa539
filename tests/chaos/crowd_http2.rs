//! The clients that use HTTP/2, in cleartext and over TLS: several requests at once on
//! each connection, and streams and connections that they give up or read slowly.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::check::judge;
use super::crowd::Then;
use super::questions::Question;
use super::world::{BOUND, HANG, Listener, World};
use crate::dice::Dice;
use crate::support::transport::{Transport, secure};
use crate::support::wire::{Answer, Head};

/// One connection.
struct Visit {
    world: Arc<World>,
    listener: Arc<Listener>,
    transport: Transport,
    send: SendRequest<Bytes>,
    connection: JoinHandle<()>,
    /// For its options.
    socket: socket2::Socket,
    /// The last ETag that was seen.
    etag: Option<String>,
    /// Whether anything has been answered on it.
    is_in_use: bool,
}

/// A request under way.
struct Asked {
    response: ResponseFuture,
    body: SendStream<Bytes>,
    sent: Instant,
}

impl Drop for Visit {
    fn drop(&mut self) {
        // Its socket is closed at once.
        self.connection.abort();
    }
}

/// Lives until all is over.
pub(crate) async fn live(world: Arc<World>, number: u64, transport: Transport) {
    let mut dice = world.dice("client", number);
    while !world.is_over() {
        let Some(listener) = world.listener().await else {
            return;
        };
        let slow = dice.percent(8);
        let connected = Visit::connect(&world, &listener, transport, slow);
        let Ok(Some(mut visit)) = timeout(HANG, connected).await else {
            if listener.drained.get().is_none() && !world.may_turn_away() {
                world.violation(format!("no connection, {transport:?}"));
            }
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        world.count("connections by transport", format!("{transport:?}"));
        for _ in 0..dice.between(1, 30) {
            if world.is_over() {
                break;
            }
            let then = match slow {
                true => visit.read_slowly(&mut dice).await,
                false => visit.act(&mut dice).await,
            };
            if then == Then::Leave {
                break;
            }
            sleep(Duration::from_millis(dice.between(0, 40))).await;
        }
    }
}

impl Visit {
    async fn connect(
        world: &Arc<World>,
        listener: &Arc<Listener>,
        transport: Transport,
        slow: bool,
    ) -> Option<Self> {
        let address = match transport {
            Transport::Http1 | Transport::H2c => listener.address,
            Transport::H2Tls => listener.tls,
        };
        let stream = TcpStream::connect(address).await.ok()?;
        let socket = SockRef::from(&stream).try_clone().unwrap();
        let (send, connection) = match transport {
            Transport::Http1 | Transport::H2c => shake(stream, slow).await?,
            Transport::H2Tls => shake(secure(stream).await.ok()?, slow).await?,
        };
        Some(Self {
            world: world.clone(),
            listener: listener.clone(),
            transport,
            send,
            connection,
            socket,
            etag: None,
            is_in_use: false,
        })
    }

    async fn act(&mut self, dice: &mut Dice) -> Then {
        let questions = &self.world.questions;
        match dice.below(100) {
            0..45 => {
                let question = questions.good(dice);
                self.ask(&[question]).await
            }
            45..52 => {
                let mut question = questions.good(dice);
                question.method = "HEAD";
                self.ask(&[question]).await
            }
            52..60 => {
                let mut question = questions.good(dice);
                if let Some(etag) = &self.etag {
                    question.fields = format!("if-none-match: \"other\", {etag}\r\n");
                }
                self.ask(&[question]).await
            }
            60..68 => {
                let question = questions.bad(dice);
                // Neither can be written in HTTP/2.
                let is_http1 = ["transfer-encoding", "bad field"];
                match is_http1.iter().any(|part| question.fields.contains(part)) {
                    true => Then::GoOn,
                    false => self.ask(&[question]).await,
                }
            }
            68..71 => {
                let question = questions.own(dice);
                self.ask(&[question]).await
            }
            71..85 => {
                let count = dice.between(2, 12);
                let several: Vec<_> = (0..count).map(|_| questions.good(dice)).collect();
                self.ask(&several).await
            }
            85..94 => self.reset(dice).await,
            _ => self.leave_in_answer(dice).await,
        }
    }

    /// Sends a request; `None` where the connection has ended.
    async fn send(&mut self, question: &Question) -> Option<Asked> {
        let sent = Instant::now();
        let scheme = match self.transport {
            Transport::Http1 | Transport::H2c => "http",
            Transport::H2Tls => "https",
        };
        let uri = format!("{scheme}://gateway.example{}", question.target);
        let mut request = Request::builder().method(question.method).uri(uri);
        let (fields, body) = question
            .fields
            .split_once("\r\n\r\n")
            .unwrap_or((&question.fields, ""));
        for line in fields.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let request = request.body(()).unwrap();
        let ready = self.send.clone().ready().await;
        let begun = ready.and_then(|mut ready| {
            let begun = ready.send_request(request, body.is_empty());
            self.send = ready;
            begun
        });
        match begun {
            Ok((response, mut sending)) => {
                if !body.is_empty() {
                    // The gateway may have refused it already.
                    let _ = sending.send_data(Bytes::copy_from_slice(body.as_bytes()), true);
                }
                Some(Asked {
                    response,
                    body: sending,
                    sent,
                })
            }
            Err(error) => {
                self.broken(&error, question, sent);
                None
            }
        }
    }

    /// Asks all at once, and reads the answers.
    async fn ask(&mut self, questions: &[Question]) -> Then {
        let mut asked = Vec::new();
        for question in questions {
            let Some(one) = self.send(question).await else {
                return Then::Leave;
            };
            asked.push(one);
        }
        self.hear(questions, asked, Duration::ZERO).await
    }

    /// Reads the answers, in whichever order they come, with pauses within them.
    async fn hear(&mut self, questions: &[Question], asked: Vec<Asked>, pause: Duration) -> Then {
        let read = asked.into_iter().map(async |one| {
            let read = timeout(HANG, read(one.response, pause)).await;
            (read, one.sent, one.sent.elapsed())
        });
        let all = join_all(read).await;
        let mut then = Then::GoOn;
        for (question, (read, sent, took)) in questions.iter().zip(all) {
            self.world.count("requests", question.method);
            match read {
                Ok(Ok(answer)) => {
                    self.is_in_use = true;
                    if pause.is_zero() {
                        self.world.took(took);
                        if took > BOUND {
                            self.violation(&format!("it took {took:?}"), question);
                        }
                    }
                    self.judge(question, &answer);
                }
                Ok(Err(error)) => {
                    self.broken(&error, question, sent);
                    then = Then::Leave;
                }
                Err(_elapsed) => {
                    self.violation("it hangs", question);
                    then = Then::Leave;
                }
            }
        }
        then
    }

    fn judge(&mut self, question: &Question, answer: &Answer) {
        let transport = format!("{:?}", self.transport);
        self.world.count("answers by transport", transport);
        let status = answer.status.to_string();
        self.world.count("answers by status", status);
        if let Some(etag) = answer.head.field("etag") {
            self.etag = Some(etag.to_owned());
        }
        // RFC 9113 §8.2.2.
        if let Some((name, _)) = answer.head.fields.iter().find(|(name, _)| {
            ["connection", "keep-alive", "transfer-encoding", "upgrade"].contains(&&**name)
        }) {
            self.violation(&format!("an answer has {name}"), question);
        }
        if let Err(why) = judge(&self.world, question, answer) {
            let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]);
            self.violation(&format!("{why}: {:?} {text}", answer.head), question);
        }
    }

    /// A stream or the connection has ended before an answer was whole. It may where
    /// the gateway drains, for what was sent after that began, and where there were
    /// too many connections, before anything was answered.
    fn broken(&self, error: &h2::Error, question: &Question, sent: Instant) {
        let drained = self.listener.drained.get();
        if drained.is_some_and(|drained| sent >= *drained) {
            return self.world.count("clients", "closed by a drain");
        }
        if !self.is_in_use && !error.is_reset() && self.world.may_turn_away() {
            return self.world.count("clients", "turned away");
        }
        let since = drained.map(|drained| sent.duration_since(*drained));
        self.violation(&format!("{error:?}, drained before {since:?}"), question);
    }

    fn violation(&self, what: &str, question: &Question) {
        let Question { method, target, .. } = question;
        let target = &target[..target.len().min(120)];
        let transport = self.transport;
        self.world
            .violation(format!("{transport:?} {method} {target}: {what}"));
    }

    /// Resets some streams, before or in the middle of their answers; those beside them
    /// go on.
    async fn reset(&mut self, dice: &mut Dice) -> Then {
        let stays = self.world.questions.good(dice);
        let Some(kept) = self.send(&stays).await else {
            return Then::Leave;
        };
        for _ in 0..dice.between(1, 4) {
            let question = match dice.below(2) {
                0 => self.world.questions.large(dice),
                _ => self.world.questions.good(dice),
            };
            let Some(mut one) = self.send(&question).await else {
                return Then::Leave;
            };
            self.world.count("requests", question.method);
            let patience = Duration::from_millis(dice.between(0, 30));
            let begun = timeout(patience, &mut one.response).await;
            one.body.send_reset(Reason::CANCEL);
            drop(begun);
            let transport = format!("streams reset by clients, {:?}", self.transport);
            self.world.count("clients", transport);
        }
        self.hear(&[stays], vec![kept], Duration::ZERO).await
    }

    /// Goes away before the answers are whole, or before they have begun.
    async fn leave_in_answer(&mut self, dice: &mut Dice) -> Then {
        let mut asked = Vec::new();
        for _ in 0..dice.between(1, 6) {
            let question = match dice.below(2) {
                0 => self.world.questions.large(dice),
                _ => self.world.questions.good(dice),
            };
            self.world.count("requests", question.method);
            let Some(one) = self.send(&question).await else {
                return Then::Leave;
            };
            asked.push(one);
        }
        sleep(Duration::from_millis(dice.between(0, 30))).await;
        if dice.percent(50) {
            // Where it is closed already, it needs no reset.
            let _ = self.socket.set_linger(Some(Duration::ZERO));
        }
        let transport = format!("gone in mid-answer, {:?}", self.transport);
        self.world.count("clients", transport);
        Then::Leave
    }

    /// Asks for several large pages, and takes its time with them.
    async fn read_slowly(&mut self, dice: &mut Dice) -> Then {
        let count = dice.between(1, 4);
        let several: Vec<_> = (0..count)
            .map(|_| self.world.questions.large(dice))
            .collect();
        let mut asked = Vec::new();
        for question in &several {
            let Some(one) = self.send(question).await else {
                return Then::Leave;
            };
            asked.push(one);
        }
        let transport = format!("slow readings, {:?}", self.transport);
        self.world.count("clients", transport);
        let pause = Duration::from_millis(dice.between(1, 20));
        self.hear(&several, asked, pause).await
    }
}

/// The handshake of HTTP/2; with a small window for each stream if the client is slow.
async fn shake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    slow: bool,
) -> Option<(SendRequest<Bytes>, JoinHandle<()>)> {
    let mut builder = Builder::new();
    if slow {
        builder.initial_window_size(1024);
    }
    let (send, connection) = builder.handshake(stream).await.ok()?;
    let connection = tokio::spawn(async move {
        // The streams see the error too.
        let _ = connection.await;
    });
    Some((send, connection))
}

/// Reads an answer, with a pause after each part of its body.
async fn read(response: ResponseFuture, pause: Duration) -> Result<Answer, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let fields = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        (name.to_string(), value.into_owned())
    });
    Ok(Answer {
        status: head.status.as_u16(),
        head: Head {
            line: format!("{:?} {}", head.version, head.status),
            fields: fields.collect(),
        },
        body: whole(&mut body, pause).await?,
    })
}

async fn whole(body: &mut RecvStream, pause: Duration) -> Result<Vec<u8>, h2::Error> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        whole.extend_from_slice(&data);
        sleep(pause).await;
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(whole)
}
